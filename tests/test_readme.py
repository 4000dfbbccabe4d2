"""The README keeps its word: its code runs, and the tests and documents that it names are there."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import openai
import pytest

from minutebook import Conversation, MemoryStore

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


LOOP = re.compile(r"^```python async\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks(LOOP))
def test_c1_the_documented_loop_runs_with_the_official_client(code: str) -> None:
    """The loop stands as it is in an `async def`, with the real client over a transport that answers as OpenAI does."""
    answers = [
        {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}]},
        {"content": "On Tuesday."},
    ]
    asked: list[list[dict[str, object]]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content)["messages"])
        message = {"role": "assistant", "content": None, **answers[len(asked) - 1]}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
        return httpx2.Response(
            200, json={**body, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        )

    async def run_tool(call: object) -> str:
        return f"found by {type(call).__name__}"

    scope: dict[str, object] = {
        "MODEL": "m",
        "TOOLS": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
        "SYSTEM": {"role": "system", "content": "You help."},
        "run_tool": run_tool,
        "client": openai.AsyncOpenAI(
            api_key="k", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)), max_retries=0
        ),
    }

    async def run() -> list[str]:
        async with MemoryStore() as store:
            scope["conversation"] = conversation = Conversation(store, "order-48213", format="openai-chat")
            exec(f"async def loop():\n{re.sub('^', '    ', code, flags=re.MULTILINE)}", scope)
            await scope["loop"]()  # type: ignore[operator]
            return [str(message["role"]) for message in await conversation.window()]

    assert asyncio.run(run()) == ["user", "assistant", "tool", "assistant"]
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "tool"]


def test_named_files_exist() -> None:
    """Each guarantee names the test that proves it; a name that leads nowhere is a claim without a proof."""
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"`(tests/[a-z_/.]+)`", text)) | set(re.findall(r"\]\(([A-Za-z/.]+\.md)\)", text))
    assert named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
