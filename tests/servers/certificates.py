"""Certificates for servers of the tests, made by the `openssl` program; without it what needs one skips."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "localhost"
"""Whom a server's certificate is for: not for the same machine by its number."""


class Authority:
    """One that signs: its own certificate, and those of servers."""

    def __init__(self, folder: Path) -> None:
        """Make one in a folder of its own."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", f"/CN={folder.name}", "-keyout", self.key, "-out", self.certificate),
        )

    def signed(self, name: str = NAME) -> tuple[Path, Path]:
        """Return the files of a server's certificate and of its key."""
        key, request, certificate = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{name}\n")
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-days", "2", "-in", request, "-CA", self.certificate, "-CAkey", self.key),
            *("-CAcreateserial", "-extfile", extensions, "-out", certificate),
        )
        return certificate, key


def openssl(*arguments: object) -> None:
    """Run the program; the test skips where it is not installed."""
    path = shutil.which("openssl")
    if path is None:
        pytest.skip("openssl is not installed: nothing about TLS was tested")
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
