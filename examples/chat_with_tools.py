"""
A chat whose model may call typed functions, within a budget; what they did is in the record and not in the history.

    python chat_with_tools.py

It needs `minutebook[openai]`. With a key in OPENAI_API_KEY the service answers; without one a strict fake of it does,
on this machine: it refuses what the service refuses, such as a call without its result.
"""

import os
from typing import Any

from minutebook.sync import Agent, AgentBudgetExhausted, Budgets
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Received


def look_up(order: str) -> dict[str, str]:
    """Look up an order by its number."""
    print(f"  looking up {order}")
    return {"order": order, "arrives": "Tuesday"}


def model(received: Received) -> Answer:
    """Answer as a model would, from nothing but what was sent."""
    asked = received.json["messages"][-1]
    if "again and again" in str(received.json["messages"]):
        return Answer(calls=(FunctionCall("look_up", {"order": "ORD-1"}),))
    if asked["role"] == "tool":
        return Answer(text="They arrive on Tuesday.")
    if "orders" in str(asked["content"]):
        orders = ("ORD-42445", "ORD-42446")
        return Answer(calls=tuple(FunctionCall("look_up", {"order": order}) for order in orders))
    return Answer(text="With pleasure.")


def main() -> None:
    """Ask something that needs two calls, thank, and ask something that has no end."""
    with ProviderFake("openai-chat", model) as fake:
        service: dict[str, Any] = (
            {} if os.environ.get("OPENAI_API_KEY") else {"base_url": fake.base_url, "api_key": "none is needed"}
        )
        budgets = Budgets(max_decisions=3, max_calls=4)
        with Agent(name="Clerk", goal="Help with orders", tools=[look_up], budgets=budgets, **service) as agent:
            print(agent.chat("Where are my two orders, ORD-42445 and ORD-42446?"))
            print(agent.chat("Thank you."))
            try:
                agent.chat("Look it up again and again.")
            except AgentBudgetExhausted as error:
                print(f"stopped by the budget of {error.budget}")
            print([message["content"] for message in agent.get_history()])
            print(f"{sum(1 for _ in agent.search('Tuesday'))} entries tell of Tuesday")


if __name__ == "__main__":
    main()
