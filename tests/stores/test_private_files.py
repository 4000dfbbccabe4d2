"""
Privacy of files (SPEC D20, promises I-35 and I-36): real files, real links, real processes, no stand-ins.

Attackers and crashes are child processes. A test that needs root (a file of another user, a mount) skips with the
reason where it is run by someone else. `MINUTEBOOK_PROVE=1` raises the swap race from seconds to 100,000 swaps.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.budgets import budget

from minutebook import sync
from minutebook.errors import (
    CallerError,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageUnsafe,
    InvalidOption,
    StorageError,
)
from minutebook.stores import private_files, private_paths
from minutebook.stores.network_filesystems import network_filesystem
from minutebook.stores.opening import SQLiteStore
from minutebook.stores.private_files import (
    SIDECARS,
    PrivateDatabase,
    open_lock_file,
    open_private_database,
    recheck,
)
from minutebook.stores.private_paths import Directory
from minutebook.stores.private_writer import private_file_writer
from minutebook.stores.sqlite_statements import APPLICATION_ID

SWAPS = budget(0, 100_000)
RACE_SECONDS = budget(1.5, 600.0)
NAIVE_TRIES = 200_000
CREATIONS = budget(60, 2_000)
NOBODY = 65534

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and owners are the host's on Windows")
needs_root = pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="needs root to act as two users")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A directory of this user with mode 0700, as the documentation tells hosts to make one."""
    directory = tmp_path / "room"
    directory.mkdir(mode=0o700)
    return directory


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def problem_of(call: Callable[[], object]) -> str:
    with pytest.raises(DecisionHistoryStorageUnsafe) as refusal:
        call()
    assert refusal.value.path
    assert len(str(refusal.value)) > len(refusal.value.path) + 20, "the message says what to do"
    return str(refusal.value.problem)


def snapshot(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    found = {name: os.lstat(directory / name) for name in os.listdir(directory)}
    return {name: (each.st_ino, each.st_mode, each.st_size, each.st_mtime_ns) for name, each in found.items()}


def start_child(act: Callable[[], None]) -> int:
    """Run `act` in a forked child, which ends with status 0 when it returns and 1 when it raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def in_child(act: Callable[[], None]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(start_child(act), 0)[1])


def end_child(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def write_rows(path: str, journal_mode: str = "wal") -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"pragma journal_mode={journal_mode}")
        connection.execute("create table if not exists t(a)")
        connection.execute("insert into t values (randomblob(9000))")


# --- D20: created or restored to 0600 ---------------------------------------------------------------------------------


def ours(application: int = APPLICATION_ID) -> bytes:
    """Return the bytes of a database with a table, of this or another application."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute("CREATE TABLE kept (value)")
        return connection.serialize()


def test_d20_new_database_is_empty_private_and_absolute(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative name comes back as the absolute path of an empty 0600 file of this user."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    monkeypatch.chdir(room)
    private = open_private_database("history.db")
    status = os.lstat(private.path)
    assert private == PrivateDatabase(os.path.realpath(room / "history.db"), status.st_dev, status.st_ino)
    assert (mode_of(room / "history.db"), status.st_size, status.st_uid) == (0o600, 0, os.geteuid())
    assert os.listdir(room) == ["history.db"]
    assert synced == [os.stat(room).st_ino], "the new name is durable"
    with pytest.raises(AttributeError, match="immutable"):
        private.path = "elsewhere"  # type: ignore[misc]


def test_d20_existing_sidecars_are_restored(room: Path) -> None:
    """The database and each sidecar that exists have mode 0600 before SQLite opens any of them; bytes stay."""
    for name in ("history.db", *("history.db" + sidecar for sidecar in SIDECARS)):
        (room / name).write_bytes(ours())
        (room / name).chmod(0o666)
    open_private_database(room / "history.db")
    assert {mode_of(each) for each in room.iterdir()} == {0o600}
    assert {each.read_bytes() for each in room.iterdir()} == {ours()}
    assert len(list(room.iterdir())) == 1 + len(SIDECARS)


def test_d20_directories_are_never_created_or_changed(room: Path) -> None:
    """A missing parent is refused, and the modes of existing ones stay the host's."""
    assert problem_of(lambda: open_private_database(room / "missing" / "history.db")) == "no_directory"
    room.chmod(0o755)
    before = room.parent.stat().st_mode
    open_private_database(room / "history.db")
    assert (mode_of(room), room.parent.stat().st_mode) == (0o755, before)
    (room / "file").touch()
    assert problem_of(lambda: open_private_database(room / "file" / "history.db")) == "no_directory"


def test_d20_refusal_leaves_every_file_as_it_was(room: Path) -> None:
    """When one of five names is refused, no other is created or restored."""
    (room / "history.db-wal").write_bytes(b"wide")
    (room / "history.db-wal").chmod(0o644)
    (room / "history.db-lock").symlink_to("/etc/passwd")
    before = snapshot(room)
    assert problem_of(lambda: open_private_database(room / "history.db")) == "symlink"
    assert snapshot(room) == before


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_d20_second_open_keeps_the_locks_of_a_live_connection(room: Path, journal_mode: str) -> None:
    """Opening again and rechecking in one process opens no file, so SQLite's POSIX locks survive both."""
    private = open_private_database(room / "history.db")
    write_rows(private.path, journal_mode)

    def others_write() -> bool:
        # A fork would inherit what SQLite notes about its own locks, so the other process is a new one.
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('begin immediate')"
        return not subprocess.run([sys.executable, "-c", code, private.path], stderr=subprocess.DEVNULL).returncode

    with closing(sqlite3.connect(private.path, isolation_level=None)) as holder:
        holder.execute("begin immediate")
        holder.execute("insert into t values (1)")
        assert not others_write()
        assert open_private_database(private.path) == private
        assert open_private_database(private.path, in_use={(private.device, private.inode)}) == private
        recheck(private)
        assert not others_write(), "a lock was dropped"
        locked = private.path + ("-shm" if journal_mode == "wal" else "")
        os.close(os.open(locked, os.O_RDONLY))
        assert others_write(), "the control must see the lock dropped"


def test_d20_file_in_use_is_refused_rather_than_restored(room: Path) -> None:
    """Restoring a mode needs a descriptor; while this process uses the database the wider mode is an error."""
    private = open_private_database(room / "history.db")
    in_use = {(private.device, private.inode)}
    for name in ("history.db", "history.db-shm"):
        (room / name).touch()
        (room / name).chmod(0o640)
        assert problem_of(lambda: open_private_database(private.path, in_use=in_use)) == "mode"
        assert mode_of(room / name) == 0o640
        open_private_database(private.path)
        assert mode_of(room / name) == 0o600


# --- bad inputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", *SIDECARS])
def test_bad_input_71_symlink_as_database_or_sidecar(room: Path, suffix: str) -> None:
    """A link in place of any of the five files is refused, and what it names is untouched."""
    victim = room / "victim"
    victim.write_bytes(b"theirs")
    victim.chmod(0o644)
    (room / f"history.db{suffix}").symlink_to(victim)
    before = snapshot(room)
    assert problem_of(lambda: open_private_database(room / "history.db")) == "symlink"
    assert snapshot(room) == before


@pytest.mark.parametrize("suffix", ["", *SIDECARS])
def test_bad_input_72_dangling_symlink(room: Path, suffix: str) -> None:
    """A link to nothing is refused and its target is not created."""
    (room / f"history.db{suffix}").symlink_to(room / "created elsewhere")
    assert problem_of(lambda: open_private_database(room / "history.db")) == "symlink"
    assert not (room / "created elsewhere").exists()


def test_bad_input_73_symlinked_parent_is_resolved(tmp_path: Path, room: Path) -> None:
    """A linked directory is followed; the path given to SQLite holds no link, also with `..` behind one."""
    (room / "inner").mkdir()
    (tmp_path / "absolute").symlink_to(room / "inner")
    (tmp_path / "relative").symlink_to("room/inner/../inner")
    for parent in (tmp_path / "absolute", tmp_path / "relative"):
        assert open_private_database(parent / "history.db").path == os.path.realpath(room / "inner/history.db")
    up = open_private_database(f"{tmp_path}/absolute/../other.db")
    assert up.path == os.path.realpath(room / "other.db"), "`..` leads out of the link's target, not out of the link"


def test_bad_input_73_the_real_chain_is_what_counts(tmp_path: Path, room: Path) -> None:
    """A safe link into an unsafe directory, a link in an unsafe directory and a circle are refused."""
    (tmp_path / "link").symlink_to(room)
    room.chmod(0o777)
    assert problem_of(lambda: open_private_database(tmp_path / "link" / "history.db")) == "directory_writable"
    (room / "back").symlink_to(tmp_path)
    assert problem_of(lambda: open_private_database(room / "back" / "history.db")) == "directory_writable"
    (tmp_path / "circle").symlink_to("circle")
    assert problem_of(lambda: open_private_database(tmp_path / "circle" / "history.db")) == "symlink"


@needs_root
def test_bad_input_73_link_of_another_user(tmp_path: Path, room: Path) -> None:
    """In a sticky directory another user may lay a link to one of our directories: it is not followed."""
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to(room)
    assert open_private_database(tmp_path / "link" / "history.db")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    assert problem_of(lambda: open_private_database(tmp_path / "link" / "history.db")) == "directory_owner"


@pytest.mark.parametrize("suffix", ["", *SIDECARS])
def test_bad_input_74_hard_link(room: Path, suffix: str) -> None:
    """A file with a second name is refused and its mode stays."""
    (room / "other name").touch()
    (room / "other name").chmod(0o644)
    os.link(room / "other name", room / f"history.db{suffix}")
    assert problem_of(lambda: open_private_database(room / "history.db")) == "hard_link"
    assert mode_of(room / "other name") == 0o644


@pytest.mark.timeout(20)
@pytest.mark.parametrize("suffix", ["", *SIDECARS])
@pytest.mark.parametrize("kind", ["fifo", "directory", "socket", "device"])
def test_bad_input_75_no_regular_file(room: Path, kind: str, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no regular file is refused at once: a FIFO without a writer does not hang the caller."""
    monkeypatch.chdir(room)  # a socket's name may have 107 bytes only
    name = f"history.db{suffix}"
    if kind == "fifo":
        os.mkfifo(name, 0o644)
    elif kind == "directory":
        os.mkdir(name)
    elif kind == "socket":
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(name)
    else:
        try:
            os.mknod(name, stat.S_IFCHR | 0o644, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("device nodes cannot be made here")
    assert problem_of(lambda: open_private_database("history.db")) == "not_regular"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("laid", "problem"), [("fifo", "not_regular"), ("symlink", "symlink")])
def test_bad_input_75_file_swapped_between_look_and_open(
    room: Path, monkeypatch: pytest.MonkeyPatch, laid: str, problem: str
) -> None:
    """What takes the file's place after the look is judged again: no hang, nothing chmod-ed, no link followed."""
    database, victim = room / "history.db", room / "victim"
    for each in (database, victim):
        each.touch()
        each.chmod(0o644)
    really_open = os.open

    def open_after_swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "history.db":
            database.unlink()
            if laid == "fifo":
                os.mkfifo(database, 0o644)
            else:
                database.symlink_to(victim)
        return really_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_after_swap)
    assert problem_of(lambda: open_private_database(database)) == problem
    assert (mode_of(victim), stat.S_IMODE(database.stat().st_mode)) == (0o644, 0o644)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777, 0o1770])
def test_bad_input_76_parent_writable_by_others(room: Path, mode: int) -> None:
    """Group or others may not write in the parent, with the sticky bit either: they could create a sidecar first."""
    room.chmod(mode)
    assert problem_of(lambda: open_private_database(room / "history.db")) == "directory_writable"
    assert problem_of(lambda: private_file_writer(room / "export.jsonl").__enter__()) == "directory_writable"
    assert (os.listdir(room), mode_of(room)) == ([], mode)


def test_bad_input_77_grandparent_writable_by_others(room: Path) -> None:
    """Above the parent others may write only where the sticky bit keeps them from moving what is ours."""
    below = room / "a" / "b"
    below.mkdir(parents=True)
    for mode in (0o777, 0o770):
        room.chmod(mode)
        assert problem_of(lambda: open_private_database(below / "history.db")) == "directory_writable"
    room.chmod(0o1777)
    assert open_private_database(below / "history.db")


@needs_root
def test_bad_input_77_directory_of_another_user(room: Path) -> None:
    """A parent or grandparent of another user is refused whatever its mode, sticky too; root's are accepted."""
    below = room / "below"
    below.mkdir(mode=0o700)
    for directory, mode in ((room, 0o755), (room, 0o1777), (below, 0o700)):
        os.chown(directory, NOBODY, NOBODY)
        directory.chmod(mode)
        assert problem_of(lambda: open_private_database(below / "history.db")) == "directory_owner"
        os.chown(directory, 0, 0)
        directory.chmod(0o755)


@needs_root
def test_d20_user_without_rights_works_below_directories_of_root() -> None:
    """An ordinary user opens below root's directories, also through one that it may enter but not list."""
    with tempfile.TemporaryDirectory() as outer:
        if not all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(outer).parents):
            pytest.skip("the directory of temporary files cannot be entered by an ordinary user")
        mine = Path(outer) / "mine"
        mine.mkdir(mode=0o700)
        os.chown(mine, NOBODY, NOBODY)
        os.chmod(outer, 0o711)

        def act() -> None:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            private = open_private_database(mine / "history.db")
            write_rows(private.path)
            assert mode_of(mine / "history.db") == 0o600
            os.chmod(mine, 0o300)
            with pytest.raises(DecisionHistoryStorageFailed, match="EACCES"), private_file_writer(mine / "export"):
                pass

        assert in_child(act) == 0


@needs_root
@pytest.mark.parametrize("suffix", ["", *SIDECARS])
def test_bad_input_78_file_of_another_user(room: Path, suffix: str) -> None:
    """A file that another user owns is refused: its owner could read what is written and widen its mode again."""
    theirs = room / f"history.db{suffix}"
    theirs.touch(mode=0o644)
    theirs.chmod(0o644)
    os.chown(theirs, NOBODY, NOBODY)
    assert problem_of(lambda: open_private_database(room / "history.db")) == "owner"
    assert mode_of(theirs) == 0o644


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o660, 0o400, 0o4755, 0o604])
def test_bad_input_79_existing_mode_is_restored(room: Path, mode: int) -> None:
    """An existing file of ours gets mode 0600, wider or narrower, and keeps its bytes."""
    database = room / "history.db"
    database.write_bytes(ours())
    database.chmod(mode)
    open_private_database(database)
    assert (mode_of(database), database.read_bytes()) == (0o600, ours())


@pytest.mark.parametrize("kind", ["text", "short", "another application's", "of no application", "cut header"])
def test_d20_a_file_that_is_none_of_ours_keeps_its_mode(room: Path, kind: str) -> None:
    """A slip in the name must not take a file away from its readers; it is not touched for a moment."""
    theirs = room / "theirs"
    theirs.write_bytes(
        {
            "text": b"root:x:0:0:root:/root:/bin/bash\n" * 9,
            "short": b"x",
            "another application's": ours(application=7),
            "of no application": ours(application=0),
            "cut header": ours()[:60],
        }[kind]
    )
    theirs.chmod(0o644)
    before = theirs.stat().st_ctime_ns
    with pytest.raises(DecisionHistoryStorageUnsafe, match="no database of minutebook's; nothing was changed"):
        SQLiteStore(theirs, namespace="n")
    assert (mode_of(theirs), theirs.stat().st_ctime_ns) == (0o644, before)
    assert sorted(each.name for each in room.iterdir()) == ["theirs"]


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_bad_input_80_umask_has_no_part(room: Path, mask: int, journal_mode: str) -> None:
    """Database, export, lock file and the sidecars that SQLite makes are 0600 under any umask."""
    with umask(mask):
        private = open_private_database(room / "history.db")
        os.close(open_lock_file(private))
        with private_file_writer(room / "export.jsonl") as writer:
            writer.write(b"{}")
        with closing(sqlite3.connect(private.path, isolation_level=None)) as connection:
            connection.execute(f"pragma journal_mode={journal_mode}")
            connection.execute("create table t(a)")
            connection.execute("begin immediate")
            connection.execute("insert into t values (1)")
            recheck(private)
            modes = {each.name: mode_of(each) for each in room.iterdir()}
            connection.execute("commit")
    assert set(modes.values()) == {0o600}
    assert ("history.db-wal" in modes) is (journal_mode == "wal")
    assert ("history.db-journal" in modes) is (journal_mode == "delete")


@contextmanager
def read_only_mount(directory: Path) -> Iterator[Callable[[], None]]:
    """Mount a small file system; the call that is yielded makes it read-only."""

    def mount(*arguments: str) -> None:
        if subprocess.run(["mount", *arguments, str(directory)], capture_output=True, check=False).returncode:
            pytest.skip("this system does not let the test mount a file system")

    mount("-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs")
    try:
        yield lambda: mount("-o", "remount,ro")
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@needs_root
def test_bad_input_81_read_only_filesystem(room: Path) -> None:
    """On a read-only file system a new and an existing database are refused, and an export too, cause kept."""
    with read_only_mount(room) as make_read_only:
        open_private_database(room / "history.db")
        make_read_only()
        for act in (
            lambda: open_private_database(room / "history.db"),
            lambda: open_private_database(room / "new.db"),
            lambda: private_file_writer(room / "export.jsonl").__enter__(),
        ):
            with pytest.raises(DecisionHistoryStorageFailed, match="EROFS") as failure:
                act()
            assert failure.value.problem == "read_only"
            assert isinstance(failure.value.__cause__, OSError)
        assert os.listdir(room) == ["history.db"]


@needs_root
def test_bad_input_82_disk_full_in_an_export(room: Path) -> None:
    """When the disk fills, the old export stays whole, the part is gone and the error is ours, in the block already."""
    with read_only_mount(room):
        (room / "export.jsonl").write_bytes(b"old")
        seen: list[DecisionHistoryStorageFailed] = []

        def export() -> None:
            with private_file_writer(room / "export.jsonl", force=True) as writer:
                try:
                    for _ in range(64):
                        writer.write(b"x" * 65536)
                except DecisionHistoryStorageFailed as failure:
                    seen.append(failure)
                    raise

        with pytest.raises(DecisionHistoryStorageFailed, match="ENOSPC"):
            export()
        assert [failure.problem for failure in seen] == ["disk_full"]
        assert (room / "export.jsonl").read_bytes() == b"old"
        assert os.listdir(room) == ["export.jsonl"]


def test_bad_input_84_no_descriptors_left(room: Path) -> None:
    """With every allowance of open files each call fails by name or succeeds, and leaks no descriptor."""

    def act() -> None:
        outcomes = set()
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        for allowance in range(12):
            opened = len(os.listdir("/proc/self/fd"))
            top = os.dup(0)
            os.close(top)
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + allowance, usual[1]))
            try:
                open_private_database(room / f"{allowance}.db")
                with private_file_writer(room / f"{allowance}.jsonl") as writer:
                    writer.write(b"{}")
                outcomes.add("opened")
            except DecisionHistoryStorageFailed as failure:
                outcomes.add(failure.problem)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            assert len(os.listdir("/proc/self/fd")) == opened
        assert outcomes == {"opened", "descriptors"}

    assert in_child(act) == 0


def test_bad_input_85_replaced_while_open(room: Path) -> None:
    """A database that was removed, replaced, copied back, linked or widened while open is found by `recheck`."""
    private = open_private_database(room / "history.db")
    database = room / "history.db"
    recheck(private)

    database.chmod(0o640)
    assert problem_of(lambda: recheck(private)) == "mode"
    database.chmod(0o600)
    os.link(database, room / "second")
    assert problem_of(lambda: recheck(private)) == "hard_link"
    (room / "second").unlink()
    recheck(private)

    database.rename(room / "moved")
    assert problem_of(lambda: recheck(private)) == "replaced"
    database.symlink_to(room / "moved")
    assert problem_of(lambda: recheck(private)) == "replaced"
    database.unlink()
    database.touch(mode=0o600)
    assert problem_of(lambda: recheck(private)) == "replaced"
    (room / "moved").replace(database)
    recheck(private)


@pytest.mark.parametrize("suffix", SIDECARS)
def test_bad_input_85_sidecar_changed_while_open(room: Path, suffix: str) -> None:
    """`recheck` looks at the sidecars too: a link or a widened mode is an error, absence is none."""
    private = open_private_database(room / "history.db")
    sidecar = room / f"history.db{suffix}"
    sidecar.symlink_to("/etc/passwd")
    assert problem_of(lambda: recheck(private)) == "symlink"
    sidecar.unlink()
    recheck(private)
    sidecar.touch()
    sidecar.chmod(0o604)
    assert problem_of(lambda: recheck(private)) == "mode"


MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /home rw,relatime shared:7 master:2 - {home} server:/home rw
31 22 0:41 / /srv/with\040space rw - nfs4 server:/a rw
32 30 8:1 / /home/local rw - xfs /dev/sda1 rw
33 22 0:42 / /over rw - nfs server:/b rw
34 33 0:43 / /over rw - tmpfs tmpfs rw

a line of another format
"""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs", "ceph", "lustre"])
def test_bad_input_90_network_filesystem(room: Path, kind: str) -> None:
    """A database on a network file system is refused unless its host opts in; nothing is created before."""
    mounts = f"22 1 254:0 / / rw - ext4 /dev/vda1 rw\n30 22 0:40 / {os.path.realpath(room)} rw - {kind} s:/x rw\n"
    assert problem_of(lambda: open_private_database(room / "history.db", mountinfo=mounts)) == "network_filesystem"
    assert os.listdir(room) == []
    assert open_private_database(room / "history.db", mountinfo=mounts, allow_network_filesystem=True)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/history.db", "glusterfs"),
        ("/home", "glusterfs"),
        ("/homestead/history.db", None),
        ("/home/local/history.db", None),
        ("/srv/with space/history.db", "nfs4"),
        ("/srv/with/history.db", None),
        ("/over/history.db", None),
        ("/history.db", None),
    ],
)
def test_bad_input_90_the_innermost_mount_decides(path: str, kind: str | None) -> None:
    """The longest mount point that holds the path wins, whole names only, and the last of equal ones."""
    assert network_filesystem(path, MOUNTS.format(home="glusterfs")) == kind


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.gocryptfs", "vfat"]
)
def test_bad_input_90_local_filesystems_pass(kind: str) -> None:
    """Local file systems, FUSE programs over a local disk among them, are accepted."""
    assert network_filesystem("/home/history.db", MOUNTS.format(home=kind)) is None
    assert network_filesystem("/home/history.db", "") is None


@pytest.mark.parametrize(
    "name",
    ["file:x?mode=ro", "file:x", "a\nb", "a?b=c", "a#b", "a%20b", "a%00b", " ", "'; drop", "~", "é", "a\\b", "-x"],
)
def test_bad_input_91_name_is_plain(room: Path, name: str) -> None:
    """Letters that a URI, a shell or SQL would read are letters of the name, for SQLite too."""
    private = open_private_database(room / name)
    write_rows(private.path)
    recheck(private)
    assert os.path.basename(private.path) == name
    assert set(os.listdir(room)) == {name}


@pytest.mark.parametrize(
    "name", ["", ":memory:", "a\0b", "\0", ".", "..", "history/", "/", b"history.db", None, 3, "\ud800"]
)
def test_bad_input_92_what_names_no_file(room: Path, monkeypatch: pytest.MonkeyPatch, name: object) -> None:
    """Empty and special names, directories and other types are refused; the first two name the memory store."""
    monkeypatch.chdir(room)
    with pytest.raises(InvalidOption, match="memory store" if name in ("", ":memory:") else None):
        open_private_database(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        private_file_writer(name).__enter__()  # type: ignore[arg-type]
    assert os.listdir(room) == []


def test_bad_input_92_special_names_with_a_directory_are_plain(room: Path) -> None:
    """`:memory:` in a directory is a file like any other."""
    private = open_private_database(room / ":memory:")
    write_rows(private.path)
    assert (room / ":memory:").stat().st_size


def test_bad_input_93_long_paths_and_names(room: Path) -> None:
    """What SQLite or the system would not take is refused with its length, and the longest that fits works."""
    for path in ("x/" * 2500 + "db", str(room / ("n" * 300)), str(room / ("n" * 248))):
        with pytest.raises((InvalidOption, DecisionHistoryStorageUnsafe)):
            open_private_database(path)
    deep = room
    while len(os.fsencode(deep)) < private_files.MAX_PATH_BYTES - 80:
        deep = deep / ("d" * 60)
    deep.mkdir(parents=True)
    longest = private_files.MAX_PATH_BYTES - len(os.fsencode(os.path.realpath(deep))) - 1
    private = open_private_database(deep / ("n" * longest))
    write_rows(private.path)
    with pytest.raises(InvalidOption, match=f"{private_files.MAX_PATH_BYTES} bytes"):
        open_private_database(deep / ("n" * (longest + 1)))
    assert len(os.listdir(deep)) == 1


# --- I-35: races ------------------------------------------------------------------------------------------------------


class Watch:
    """
    Counts what the kernel reports (inotify) about opens of a file and of changes to it.

    A mode that was changed and set back, or a descriptor opened for writing and closed unused, would leave no trace
    in the file's status; the kernel tells both.
    """

    OPENED, CHANGED = 0x20, 0x2 | 0x4 | 0x8 | 0x100  # open; modify, attributes, close after writing, create

    def __init__(self, *paths: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK)
        for path in paths:
            assert libc.inotify_add_watch(self.descriptor, os.fsencode(path), self.OPENED | self.CHANGED) >= 0

    def events(self) -> int:
        count = 0
        try:
            while events := os.read(self.descriptor, 65536):
                while events:
                    length = struct.unpack_from("iIII", events)[3]
                    events, count = events[16 + length :], count + 1
        except BlockingIOError:
            return count
        return count


def swap_forever(path: Path, targets: list[Path], swaps: Path) -> None:
    """Lay a wide file of ours, a link to one of `targets` and nothing at `path` in turn; `swaps` grows by one each."""
    spare = path.with_name("spare")
    with open(swaps, "ab", buffering=0) as told:
        for turn in range(10**9):
            spare.touch(mode=0o644)
            spare.rename(path)
            spare.symlink_to(targets[turn % len(targets)])
            spare.rename(path)
            path.unlink(missing_ok=True)
            told.write(b".")


@contextmanager
def attacked(path: Path) -> Iterator[tuple[Watch, Path]]:
    """While the block runs, another process swaps `path`; its links name a victim and a file that is not there."""
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "victim"
    victim.write_bytes(b"theirs")
    victim.chmod(0o644)
    swaps = path.parent.parent / "swaps"
    swaps.touch()
    watch = Watch(victim, elsewhere)
    child = start_child(lambda: swap_forever(path, [victim, elsewhere / "created elsewhere"], swaps))
    try:
        yield watch, swaps
    finally:
        end_child(child)
        os.close(watch.descriptor)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_i35_swap_race_reaches_no_foreign_file(room: Path, suffix: str) -> None:
    """While files and links come and go at a path, what the links name is not opened, chmod-ed, written or created."""
    outcomes: Counter[str] = Counter()
    with attacked(room / f"history.db{suffix}") as (watch, swaps):
        end = time.monotonic() + RACE_SECONDS
        while time.monotonic() < end and (not SWAPS or swaps.stat().st_size < SWAPS):
            try:
                open_private_database(room / "history.db")
                outcomes["opened"] += 1
            except StorageError as refusal:
                outcomes[refusal.problem] += 1
        touched = watch.events()
        swapped = swaps.stat().st_size
    assert touched == 0
    assert swapped >= max(SWAPS, 100)
    assert set(outcomes) <= {"opened", "symlink", "replaced", "mode"}, outcomes
    assert outcomes["symlink"], "the attacker was never met"
    assert outcomes["opened"], "every attempt was refused, so the way behind the checks was never taken"
    assert os.listdir(room.parent / "elsewhere") == ["victim"]
    assert mode_of(room.parent / "elsewhere" / "victim") == 0o644


def test_i35_swap_race_beats_a_check_by_path(room: Path) -> None:
    """Control: the same attacker beats code that looks at a path and then opens and chmods it by name."""

    def naive_open(path: Path) -> None:
        if not path.is_symlink():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            path.chmod(0o600)

    with attacked(room / "history.db") as (watch, _):
        for _ in range(NAIVE_TRIES):
            with suppress(OSError):
                naive_open(room / "history.db")
            if watch.events():
                return
    pytest.fail(f"the attacker did not get through in {NAIVE_TRIES} tries: this race proves nothing")


def test_i35_link_laid_between_look_and_creation(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hard link to a victim, laid at the last moment, is found by O_EXCL, judged and left with its mode."""
    victim = room / "victim"
    victim.touch()
    victim.chmod(0o644)
    really_open = os.open

    def open_after_link(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            os.link(victim, room / "history.db")
        return really_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_after_link)
    assert problem_of(lambda: open_private_database(room / "history.db")) == "hard_link"
    assert mode_of(victim) == 0o644


@contextmanager
def polled_modes(directory: Path) -> Iterator[Callable[[], set[int]]]:
    """While the block runs, another process reads the modes of the files in `directory`; the call says which it saw."""
    reader, writer = os.pipe()
    started = -1

    def poll() -> None:
        told: set[int] = set()
        os.write(writer, struct.pack("i", started))
        while True:
            for each in os.scandir(directory):
                with suppress(FileNotFoundError):
                    mode = stat.S_IMODE(os.lstat(each.path).st_mode)
                    if mode not in told:
                        told.add(mode)
                        os.write(writer, struct.pack("i", mode))

    child = start_child(poll)
    assert os.read(reader, 4) == struct.pack("i", started)
    os.set_blocking(reader, False)
    seen: set[int] = set()

    def seen_until_now() -> set[int]:
        with suppress(BlockingIOError):
            while True:
                seen.add(struct.unpack("i", os.read(reader, 4))[0])
        return seen

    try:
        yield seen_until_now
    finally:
        end_child(child)
        os.close(reader)
        os.close(writer)


def test_i35_poll_of_modes_during_creation_sees_only_0600(room: Path) -> None:
    """Under umask 0 another process never sees another mode than 0600: database, lock file, sidecars, export."""
    with umask(0), polled_modes(room) as seen:
        for turn in range(CREATIONS):
            private = open_private_database(room / "history.db")
            os.close(open_lock_file(private))
            write_rows(private.path, ("wal", "delete")[turn % 2])
            with private_file_writer(room / "export.jsonl", force=True) as writer:
                writer.write(b"{}")
            for each in room.iterdir():
                each.unlink()
        assert seen() == {0o600}


def test_i35_poll_of_modes_sees_a_late_chmod(room: Path) -> None:
    """Control: the poller catches code that creates a file and takes its wide mode back afterwards."""
    with umask(0), polled_modes(room) as seen:
        for turn in range(NAIVE_TRIES):
            path = room / f"{turn % 7}"
            with open(path, "wb"):
                path.chmod(0o600)
            path.unlink()
            if 0o666 in seen():
                return
    pytest.fail(f"the poller missed {NAIVE_TRIES} wide modes: it proves nothing")


def test_i35_two_processes_create_one_file(room: Path) -> None:
    """Of processes that open a new database at once each gets the same file, and none is refused."""

    def act() -> None:
        for turn in range(200):
            private = open_private_database(room / f"{turn}.db")
            with open(room.parent / f"{os.getpid()}.seen", "a") as told:
                told.write(f"{private.inode}\n")

    children = [start_child(act) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert len({(room.parent / f"{child}.seen").read_text() for child in children}) == 1


def test_d20_lock_file_is_checked_and_kept_open(room: Path) -> None:
    """The lock file is a private file like the others, and its descriptor takes locks."""
    private = open_private_database(room / "history.db")
    with closing(os.fdopen(open_lock_file(private), "rb+")) as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert mode_of(room / "history.db-lock") == 0o600
        assert not os.get_inheritable(lock.fileno())
    (room / "history.db-lock").unlink()
    (room / "history.db-lock").symlink_to(room / "history.db")
    assert problem_of(lambda: open_lock_file(private)) == "symlink"


def test_d20_no_descriptor_outlives_a_call(room: Path) -> None:
    """Successes and refusals of each kind leave as many files open as before."""
    (room / "link").symlink_to("history.db")
    (room / "circle").symlink_to("circle")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("history.db", "link", "circle/history.db", "missing/history.db", "", "n" * 300):
        with suppress(StorageError, CallerError):
            recheck(open_private_database(room / name if name else name))
        with suppress(StorageError, CallerError), private_file_writer(room / name if name else name) as writer:
            writer.write(b"{}")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (errno.EACCES, "permission"),
        (errno.EROFS, "read_only"),
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EMFILE, "descriptors"),
        (errno.EIO, "disk"),
    ],
)
def test_d20_errors_of_the_system_are_translated_once(
    room: Path, monkeypatch: pytest.MonkeyPatch, code: int, problem: str
) -> None:
    """A failing creation becomes our error with the cause kept, and leaves no file."""

    def fail(descriptor: int, mode: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fchmod", fail)
    for act in (
        lambda: open_private_database(room / "history.db"),
        lambda: private_file_writer(room / "export.jsonl").__enter__(),
    ):
        with pytest.raises(DecisionHistoryStorageFailed, match=errno.errorcode[code]) as failure:
            act()
        assert failure.value.problem == problem
        assert isinstance(failure.value.__cause__, OSError)
    assert os.listdir(room) == []


# --- I-36 and bad input 116: exports ----------------------------------------------------------------------------------


def noted_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what notes every sync of a file or directory and every rename from now on."""
    steps: list[str] = []
    really_sync, really_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        really_sync(descriptor)

    def replace(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        steps.append("rename")
        really_replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    return steps


def test_i36_control_a_plain_write_is_neither_whole_nor_private_nor_synced(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `open` writes is there before it ends, is not 0600 under a usual umask, and was never synced."""
    steps = noted_steps(monkeypatch)
    before = os.umask(0o022)
    try:
        with (room / "export.jsonl").open("wb") as writer:
            writer.write(b"{}\n" * 100_000)
            assert (room / "export.jsonl").exists()
    finally:
        os.umask(before)
    assert steps == []
    assert mode_of(room / "export.jsonl") == 0o644


def test_i36_export_appears_whole_private_and_synced(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is at the path until the block ends; file sync, rename, directory sync follow in this order."""
    steps = noted_steps(monkeypatch)
    with private_file_writer(room / "export.jsonl") as writer:
        writer.write(b"{}\n" * 100_000)
        assert not (room / "export.jsonl").exists()
        assert [each.suffix for each in room.iterdir()] == [".part"]
    assert steps == ["file", "rename", "directory"]
    assert (room / "export.jsonl").read_bytes() == b"{}\n" * 100_000
    assert (mode_of(room / "export.jsonl"), os.listdir(room)) == (0o600, ["export.jsonl"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_i36_block_that_raises_leaves_the_old_file(room: Path, error: type[BaseException]) -> None:
    """An exception passes through unchanged, the part is gone and the old file has its bytes and mode."""
    (room / "export.jsonl").write_bytes(b"old")
    before = snapshot(room)

    def export() -> None:
        with private_file_writer(room / "export.jsonl", force=True) as writer:
            writer.write(b"new")
            raise error

    with pytest.raises(error):
        export()
    assert snapshot(room) == before


def test_i36_block_that_closes_the_writer_publishes_nothing(room: Path) -> None:
    """A writer closed in the block can no longer be synced, so its bytes are refused rather than half trusted."""
    with pytest.raises(DecisionHistoryStorageUnsafe, match="closed"), private_file_writer(room / "x") as writer:
        writer.close()
    assert os.listdir(room) == []


@pytest.mark.parametrize("moment", ["fsync", "replace", "sync"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_i36_crash_leaves_no_file_that_looks_complete(room: Path, moment: str, old: bytes | None) -> None:
    """Killed before the rename, the path holds what it held and the part is marked; killed after it, the new file."""
    export = room / "export.jsonl"
    if old is not None:
        export.write_bytes(old)

    def act() -> None:
        def die(*arguments: object, **options: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if moment == "sync":
            private_paths.Directory.sync = die  # type: ignore[method-assign,assignment]
        else:
            setattr(os, moment, die)
        with private_file_writer(export, force=True) as writer:
            writer.write(b"{}\n" * 5_000)

    assert in_child(act) == -signal.SIGKILL
    parts = [each for each in room.iterdir() if each != export]
    if moment == "sync":
        assert (export.read_bytes(), parts) == (b"{}\n" * 5_000, [])
        return
    assert (export.read_bytes() if export.exists() else None) == old
    assert [(each.name[:12], each.suffix, mode_of(each)) for each in parts] == [(".minutebook-", ".part", 0o600)]
    with private_file_writer(export, force=True) as writer:
        writer.write(b"{}")
    assert export.read_bytes() == b"{}"


def test_bad_input_116_export_over_a_file(room: Path) -> None:
    """An existing file is refused without force and replaced, not written into, with it."""
    export = room / "export.jsonl"
    export.write_bytes(b"old")
    export.chmod(0o644)
    os.link(export, room / "second name")
    before = snapshot(room)
    assert problem_of(lambda: private_file_writer(export).__enter__()) == "exists"
    assert snapshot(room) == before
    with private_file_writer(export, force=True) as writer:
        writer.write(b"new")
    assert (export.read_bytes(), mode_of(export)) == (b"new", 0o600)
    assert (room / "second name").read_bytes() == b"old"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("target", ["victim", "created elsewhere"])
def test_bad_input_116_export_over_a_symlink(room: Path, target: str, force: bool) -> None:
    """A link, dangling or not, is refused with force too; what it names is neither written nor created."""
    (room / "victim").write_bytes(b"theirs")
    (room / "export.jsonl").symlink_to(room / target)
    before = snapshot(room)
    assert problem_of(lambda: private_file_writer(room / "export.jsonl", force=force).__enter__()) == "symlink"
    assert snapshot(room) == before


def test_bad_input_116_export_over_a_directory(room: Path) -> None:
    """Force replaces regular files only."""
    (room / "export").mkdir()
    assert problem_of(lambda: private_file_writer(room / "export", force=True).__enter__()) == "not_regular"


def test_bad_input_116_file_that_appears_while_exporting(room: Path) -> None:
    """A file created at the path during the block is kept, and the export refused."""

    def export() -> None:
        with private_file_writer(room / "x") as writer:
            writer.write(b"new")
            (room / "x").write_bytes(b"first")

    assert problem_of(export) == "exists"
    assert ((room / "x").read_bytes(), os.listdir(room)) == (b"first", ["x"])


BEGINNER = """
import sys
from minutebook import sync
with sync.SQLiteStore(sys.argv[1], namespace="n") as store:
    sync.Conversation(store, "c", format="openai-chat").append([{"role": "user", "content": "a"}])
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("at", range(5))
def test_i39_a_database_that_another_process_makes_just_now_is_no_log_without_one(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-39: its first turn may come between any two looks at the files; nobody is told to move its log away."""
    tmp_path.chmod(0o700)
    path = tmp_path / "book.sqlite"
    path.touch(mode=0o600)
    looks: list[str] = []
    makers: list[subprocess.Popen[str]] = []
    look = Directory.look

    def looking(self: Directory, name: str) -> object:
        if len(looks) == at:
            maker = subprocess.Popen(
                [sys.executable, "-c", BEGINNER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            makers.append(maker)
            assert maker.stdout is not None
            assert maker.stdout.readline() == "written\n"
        looks.append(name)
        return look(self, name)

    monkeypatch.setattr(Directory, "look", looking)
    try:
        with sync.SQLiteStore(path, namespace="n") as store:
            assert len(sync.Conversation(store, "c", format="openai-chat").window()) == 1
    finally:
        for maker in makers:
            maker.communicate()
    assert makers
