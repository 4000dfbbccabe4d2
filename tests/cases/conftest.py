"""Field cases hold on every store, so their `place` is each of them."""

import pytest
from tests.faces.places import PLACES, SHARED, Place


@pytest.fixture(params=(*PLACES, *SHARED))
def place(request, tmp_path):
    """Where a conversation is kept: RAM, a SQLite file in a private folder, and the servers."""
    tmp_path.chmod(0o700)
    return Place(request.param, tmp_path)
