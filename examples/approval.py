"""
A refund that a human approves: one process proposes it and ends, another one goes on.

    python approval.py propose      the agent runs until it needs an approval; what a human must see is printed
    python approval.py approve      in a new process: the refund is executed, once, and the agent finishes
    python approval.py deny         or: the agent reads that it was denied, and finishes

Both keep the run and the conversation in `approval.sqlite`, in a private directory of your own. With a key in
OPENAI_API_KEY the service answers; without one a strict fake of it does, on this machine. It needs
`minutebook[openai]`.
"""

import os
import sys
from contextlib import ExitStack
from typing import Any

from minutebook.sync import (
    CheckpointRefused,
    HistoryOptions,
    OpenAIChatDecisionProvider,
    Program,
    Runtime,
    SQLiteStore,
    capability,
)
from minutebook.testing import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes import Received

RUN: dict[str, Any] = {"run_id": "ticket-48213", "invocation_id": "refund"}


@capability
def look_up(order: str) -> dict[str, object]:
    """Look up an order."""
    return {"order": order, "price": 40, "arrived": "broken"}


@capability(needs_approval=True, version="1")
def refund(order: str, amount: int) -> str:
    """Give money back. It cannot be undone."""
    print(f"refunding {amount} for {order}")
    return f"{amount} were given back"


PROGRAM = Program(name="clerk", instructions="You help customers with their orders.", capabilities=[look_up, refund])


def model(received: Received) -> Answer:
    """Answer as a model would: look the order up, propose the refund, then tell how it went."""
    told = str(received.json["messages"][-1]["content"])
    if "given back" in told:
        return Answer(text='{"output": "Your 40 are on their way."}')
    if "denied" in told:
        return Answer(text='{"output": "A colleague will write to you."}')
    if '"price":40' in told:
        return Answer(calls=(FunctionCall("refund", {"order": "ORD-42445", "amount": 40}),))
    return Answer(calls=(FunctionCall("look_up", {"order": "ORD-42445"}),))


def main(step: str) -> None:
    """Take one of the three steps."""
    with ExitStack() as stack:
        fake = None if os.environ.get("OPENAI_API_KEY") else stack.enter_context(ProviderFake("openai-chat", model))
        base_url, api_key = (fake.base_url, "none is needed") if fake else (None, None)
        store = stack.enter_context(SQLiteStore("approval.sqlite", namespace="support"))
        provider = stack.enter_context(
            OpenAIChatDecisionProvider(
                model="gpt-6", base_url=base_url, api_key=api_key, history=HistoryOptions(store=store)
            )
        )
        runtime = Runtime(PROGRAM, provider)
        if step == "propose":
            outcome = runtime.run("ORD-42445 arrived broken. I want my money back.", **RUN)
        else:
            try:
                waiting = runtime.resume(**RUN).pending
            except CheckpointRefused as refused:
                sys.exit(f"{refused}; propose first")
            answers = [
                each.approve(by="ann") if step == "approve" else each.deny(by="ann", message="ask a colleague")
                for each in waiting
            ]
            outcome = runtime.resume(**RUN, approvals=answers)
    for each in outcome.pending:
        print(f"waits for approval: {each.capability} {each.shown}")
    if outcome.output is not None:
        print(f"agent: {outcome.output}")


if __name__ == "__main__":
    if sys.argv[1:] not in (["propose"], ["approve"], ["deny"]):
        sys.exit(__doc__)
    main(sys.argv[1])
