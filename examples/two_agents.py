"""
Two agents that talk to each other, side by side with a person: each message says who said it.

    python two_agents.py

It needs `minutebook[openai]`. With a key in OPENAI_API_KEY the service answers; without one a strict fake of it does,
on this machine.
"""

import asyncio
import os
from typing import Any

import openai

from minutebook import Agent
from minutebook.testing import Answer, ProviderFake
from minutebook.testing.fakes import Received


def model(received: Received) -> Answer:
    """Answer as a model would: by who is asked, and by who asks."""
    prompt, *told = received.json["messages"]
    who = prompt["content"].split("\n")[0].removeprefix("You are ").rstrip(".")
    speakers = sorted({message["name"] for message in told if "name" in message})
    return Answer(text=f"{who} to {told[-1].get('name', 'you')}: I heard {' and '.join(speakers)}.")


async def main() -> None:
    """Have a baker and a miller talk, and a person interrupt."""
    with ProviderFake("openai-chat", model) as fake:
        service: dict[str, Any] = (
            {} if os.environ.get("OPENAI_API_KEY") else {"base_url": fake.base_url, "api_key": "none is needed"}
        )
        async with openai.AsyncOpenAI(**service) as client:
            baker = Agent(name="Baker", goal="Buy good flour", client=client)
            miller = Agent(name="Miller", goal="Sell flour", client=client)
            said = await baker.chat("Ask the miller what flour costs.", name="ann")
            for _ in range(2):
                print(said)
                said = await miller.chat(said, name="baker")
                print(said)
                said = await baker.chat(said, name="miller")
            await miller.add_to_history({"role": "user", "content": "I am here too.", "name": "ann"})
            print(await miller.chat(said, name="baker"))
            for agent in (baker, miller):
                names = [message.get("name", agent.name) for message in await agent.get_history()]
                print(f"{agent.name} has {', '.join(names)}")


if __name__ == "__main__":
    asyncio.run(main())
