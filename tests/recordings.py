"""
Where the recorded conversations are that no clone holds, and the mark of the tests that need them.

They are not part of the repository. `MINUTEBOOK_DATA` names their directory; without it, it is a directory
`shared/data` beside the checkout. Where neither is there, these tests are skipped, and say so at the end of the run.
"""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[2] / "shared" / "data"
DATA = Path(os.environ.get("MINUTEBOOK_DATA") or BESIDE)
needs_recordings = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no recorded conversations at {DATA}; set MINUTEBOOK_DATA to their directory"
)
