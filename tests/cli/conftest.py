"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.own_model import OwnModel


@pytest.fixture
def own() -> Iterator[OwnModel]:
    server = OwnModel()
    yield server
    server.shutdown()
    server.server_close()
