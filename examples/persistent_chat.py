"""
A chat that goes on where it was left: every run of this file is a new process.

    python persistent_chat.py "My favourite colour is blue."
    python persistent_chat.py "What is my favourite colour?"

It is kept in `chat.sqlite`, in a private directory of your own, and needs `minutebook[openai]`. With a key in
OPENAI_API_KEY the service answers; without one a strict fake of it does, on this machine.
"""

import os
import re
import sys
from typing import Any

from minutebook.sync import Agent, SQLiteStore
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Received


def model(received: Received) -> Answer:
    """Answer as a model would, from nothing but what was sent."""
    *before, asked = [message["content"] for message in received.json["messages"]]
    if "What is" not in asked:
        return Answer(text="I will remember that.")
    found = re.search("colour is ([a-z]+)", " ".join(before))
    return Answer(text=f"It is {found[1]}." if found else "You have not told me.")


def main(text: str) -> None:
    """Say one thing and print what the agent answers."""
    with SQLiteStore("chat.sqlite", namespace="examples") as store, ProviderFake("openai-chat", model) as fake:
        service: dict[str, Any] = (
            {} if os.environ.get("OPENAI_API_KEY") else {"base_url": fake.base_url, "api_key": "none is needed"}
        )
        agent = Agent(
            name="PersistentBot",
            goal="Remember conversations across sessions",
            store=store,
            conversation="customer-7",
            **service,
        )
        with agent:
            print(f"{agent.get_history_length()} messages so far")
            for piece in agent.stream(text):
                print(piece, end="", flush=True)
            print()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
