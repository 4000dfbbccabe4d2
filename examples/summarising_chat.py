"""
A chat whose older messages become a summary once there are too many; what it stands for stays in the record.

    python summarising_chat.py

It needs `minutebook[openai]`. With a key in OPENAI_API_KEY the service answers and writes the summaries; without one a
strict fake of it does, on this machine.
"""

import json
import os
import re
from typing import Any

from minutebook.sync import Agent, AgentEvent
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Received

SAID = [
    "My order is ORD-42445.",
    "It should be here by now.",
    "The parcel is a blue one.",
    "I live in the third street on the left.",
    "There is a dog, a friendly one.",
    "Please ring twice.",
    "I am at home until six.",
    "Which order was it?",
]


def model(received: Received) -> Answer:
    """Answer as a model would, and keep what a clerk would keep where a summary is asked for."""
    system, *_, asked = received.json["messages"]
    told = json.dumps(received.json["messages"])
    found = re.findall("ORD-[0-9]+", told)
    if system["content"].startswith("You write the summary"):
        return Answer(text=f"The customer waits for {found[0]} [a blue parcel].")
    return Answer(text=f"It was {found[0]}." if "Which order" in str(asked["content"]) else "I see.")


def main() -> None:
    """Talk for a while; print when a summary took the place of what was said, and what is known in the end."""
    with ProviderFake("openai-chat", model) as fake:
        service: dict[str, Any] = (
            {} if os.environ.get("OPENAI_API_KEY") else {"base_url": fake.base_url, "api_key": "none is needed"}
        )
        agent = Agent(
            name="Clerk",
            goal="Help customers with their orders",
            enable_summarization=True,
            summarization_threshold=60,
            **service,
        )
        agent.on(
            AgentEvent.HISTORY_SUMMARIZED,
            lambda told: print(f"  summarised {told.summarized_count}: {told.previous_length} -> {told.new_length}"),
        )
        with agent:
            for text in SAID:
                print(f"{text} {agent.chat(text)}")
            print(f"summary: {agent.get_conversation_summary()}")
            print(f"history: {agent.get_history_length()} messages")
            found: list[Any] = [message.value for message in agent.search("third street")]
            print(f"retained: {found[0]['content']}")


if __name__ == "__main__":
    main()
