"""How parameters of tests are named: the same in every process, as whoever runs them side by side needs it."""

import re


def named(value: object) -> str:
    """Return what a parameter is to a reader, without where in memory it stands."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
