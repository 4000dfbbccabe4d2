"""What `.ci/run` does before any test: it goes no further where the crash tests would only be skipped."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def ran(folder: Path, strace: str | None, timeout: str = "") -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a copy of it where `make` only notes its targets, and `strace` and `timeout` do what is given."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    programs = folder / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "true", *(() if timeout else ("timeout",))):
        (programs / name).symlink_to(str(shutil.which(name)))
    scripts = {"make": f"echo $@ >> {folder}/made"} | ({"strace": strace} if strace else {})
    scripts |= {"timeout": timeout} if timeout else {}
    for name, script in scripts.items():
        (programs / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
        (programs / name).chmod(0o755)
    run = subprocess.run(
        [programs / "bash", folder / ".ci" / "run"],
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    made = folder / "made"
    return run, made.read_text().split() if made.exists() else []


@pytest.mark.parametrize("strace", [None, "exit 1"], ids=["absent", "refused"])
def test_i01_i02_without_strace_nothing_is_run(tmp_path: Path, strace: str | None) -> None:
    """Kills at each sync and rebuilt power cuts cannot be made there, so the run fails at once and says why."""
    run, made = ran(tmp_path, strace)
    assert (run.returncode, made) == (1, ["tools"])
    assert "strace is missing" in run.stderr


def test_with_strace_everything_is_run(tmp_path: Path) -> None:
    """Control: where it traces, lint, the demo and the tests follow."""
    run, made = ran(tmp_path, "exit 0")
    assert (run.returncode, made) == (0, ["tools", "lint", "demo", "test"])


def test_the_tests_have_25_minutes(tmp_path: Path) -> None:
    """What runs out of them has failed, and whatever it left running is killed."""
    run, made = ran(tmp_path, "exit 0", timeout=f"echo $@ >> {tmp_path}/made; exit 124")
    assert (run.returncode, made) == (124, ["tools", "lint", "demo", "--kill-after=60", "25m", "make", "test"])
