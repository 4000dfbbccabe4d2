"""Nothing is done before a test of the runtime."""

import pytest
from tests.runtime.programs import DONE


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()
