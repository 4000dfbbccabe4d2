"""The README keeps its word: its code runs, and the tests and documents that it names are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPED_ONLY = re.compile(r"^```python no-run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(pattern: re.Pattern[str]) -> list[object]:
    return [
        pytest.param(match.group(1), id=f"{path.name}-{position}")
        for path in DOCUMENTS
        for position, match in enumerate(pattern.finditer(path.read_text()))
    ]


@pytest.mark.parametrize("code", blocks(BLOCK))
def test_documented_code_runs(code: str, tmp_path: Path) -> None:
    """A block marked `python` runs as it stands, in an empty private folder, with no key and no network."""
    tmp_path.chmod(0o700)
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("code", blocks(TYPED_ONLY))
def test_documented_code_that_needs_a_key_compiles_and_finds_its_names(code: str) -> None:
    """A block that needs a provider is at least Python whose imports exist."""
    names = "\n".join(line for line in code.splitlines() if line.startswith(("from ", "import ")))
    run = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    compile(f"async def block():\n{re.sub('^', '    ', code, flags=re.MULTILINE)}", "block", "exec")


def test_named_files_exist() -> None:
    """Each guarantee names the test that proves it; a name that leads nowhere is a claim without a proof."""
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(tests/[a-z_/.]+)`", text)) | set(re.findall(r"\]\(([A-Za-z/.]+\.md)\)", text))
    assert named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
