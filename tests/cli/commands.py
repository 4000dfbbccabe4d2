"""What the tests of the command line share: how it is run, and stores for it to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from minutebook.sync import Conversation, SQLiteStore

COMMAND = (sys.executable, "-m", "minutebook")
NAMESPACE = "shop"


def environment(**changes: str) -> dict[str, str]:
    """Return an environment without a key, a store or a terminal's width of the person who runs the tests."""
    ours = ("OPENAI_", "MINUTEBOOK_", "COLUMNS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | changes


def run(*arguments: str, command: tuple[str, ...] = COMMAND, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command with no terminal and nothing on its standard input."""
    options = {"env": environment(), "stdin": subprocess.DEVNULL, "timeout": 120} | options
    return subprocess.run([*command, *arguments], capture_output=True, text=True, **options)


def documents(output: str) -> list[Any]:
    """Return the JSON documents of an output, one a line."""
    return [json.loads(line) for line in output.splitlines()]


def chat_response(text: str) -> bytes:
    body = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    return json.dumps(body).encode()


def converse(database: Path, *ids: str, turns: int = 1, text: str = "On Tuesday.") -> None:
    """Record conversations as the library does."""
    with SQLiteStore(database, namespace=NAMESPACE) as store:
        for name in ids:
            conversation = Conversation(store, name, format="openai-chat")
            for position in range(turns):
                with conversation.turn(f"Question {position}") as turn:
                    turn.window()
                    turn.respond(chat_response(text))


def hold(database: Path, name: str) -> None:
    """Leave a conversation reserved, as a process does that is killed in the middle of a turn."""
    code = (
        "import os, sys; from minutebook.sync import Conversation, SQLiteStore\n"
        "store = SQLiteStore(sys.argv[1], namespace=sys.argv[2])\n"
        "with Conversation(store, sys.argv[3], format='openai-chat').turn('Held?'): os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(database), NAMESPACE, name], timeout=60)
    assert run.returncode == -9
