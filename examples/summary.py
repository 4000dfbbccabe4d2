"""
A long conversation with a summary in the place of what left the window, over two processes.

    python summary.py talk      six turns; the first ones leave the window, and a summary takes their place
    python summary.py ask       in a new process: what was said first is asked for, with the summary and without it,
                                and the next turn makes a dropped summary anew from the record

Both use `summary.sqlite`, in a private directory of your own. Functions stand in for the model and for the one that
summarises; every exchange stays in the record, whatever the summary leaves out.
"""

import re
import sys
from typing import Any

from minutebook.sync import Conversation, SQLiteStore, WindowLimits

LIMITS = WindowLimits(max_messages=6, max_bytes=4_000, low_water=0.5)
SAID = [
    "My order is ORD-42445.",
    "It should be here by now.",
    "The parcel is a blue one.",
    "I live in the third street on the left.",
    "There is a dog, a friendly one.",
    "Please ring twice.",
]


def summarize(*, previous_summary: str | None, turns: list[list[dict[str, Any]]], max_bytes: int) -> str:
    """Keep what a clerk would keep; in earnest you would ask a model, and bound what that costs."""
    left = " ".join(turn[0]["content"] for turn in turns)
    noted = re.findall(r"ORD-[0-9]+|blue|dog", left)
    before = [previous_summary] if previous_summary else []
    return "; ".join([*before, *noted, f"{len(turns)} more turns"])[:max_bytes]


def answer(messages: list[dict[str, Any]]) -> str:
    """Answer as a model would, from nothing but what was sent."""
    if "Which order" not in str(messages[-1]["content"]):
        return "I see."
    found = re.search(r"ORD-[0-9]+", str(messages))
    return f"Yours is {found[0]}." if found else "You have not told me."


def say(conversation: Conversation, text: str) -> str:
    """Take one turn, tell how much was sent for it, and return the answer."""
    with conversation.turn(text) as turn:
        window = turn.window()
        said = answer(window.messages)
        turn.respond({"choices": [{"message": {"role": "assistant", "content": said}}]})
    print(f"{text} ({len(window)} message{'s' * (len(window) > 1)} sent)")
    return said


def main(step: str) -> None:
    """Take one of the two steps."""
    with SQLiteStore("summary.sqlite", namespace="support") as store:
        conversation = Conversation(
            store, "customer-7", format="openai-chat", limits=LIMITS, summarize=summarize, max_summary_bytes=300
        )
        if step == "talk":
            for text in SAID:
                say(conversation, text)
            return
        question = {"role": "user", "content": "Which order is mine?"}
        window: list[Any] = list(conversation.window())
        if not window or isinstance(window[0]["content"], str):
            sys.exit("there is no summary yet; talk first")
        print(window[0]["content"][0]["text"])  # a first message of two parts: the summary, and what the user said
        print("with the summary:", answer([*window, question]))
        conversation.drop_summary()
        print("without it:", answer([*conversation.window(), question]))
        print("made anew:", say(conversation, str(question["content"])))
        print(f"retained: {len(conversation.last(100))} exchanges")


if __name__ == "__main__":
    if sys.argv[1:] not in (["talk"], ["ask"]):
        sys.exit(__doc__)
    main(sys.argv[1])
