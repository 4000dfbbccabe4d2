"""What a test leaves open is closed behind it, so that a long run holds no more descriptors than a short one."""

import gc
from pathlib import Path

from tests.faults.test_io_errors import descriptors
from tests.journals import close_journals

from minutebook.stores.sqlite import SQLiteJournal
from minutebook.testing import drive


def test_files_that_were_left_open_are_given_back(tmp_path: Path) -> None:
    """Three journals on two files: descriptors are as before, and closing them later does nothing."""
    tmp_path.chmod(0o700)
    gc.collect()  # what others left in this process goes by itself, and is not to be counted
    before = descriptors()
    left = [SQLiteJournal(tmp_path / name, blocking=True) for name in ("a.db", "a.db", "b.db")]
    assert descriptors() > before
    close_journals()
    assert descriptors() == before
    for journal in left:
        drive(journal.close())
    assert descriptors() == before
