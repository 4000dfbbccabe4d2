"""
An engine whose sessions are capped: what the cap drops is gone, what a second policy drops is only out of sight.

    python engine.py            a support desk over two customers, then the same file under another policy

It uses `engine.sqlite`, in a private directory of your own. A function stands in for the model.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

import msgspec

from minutebook.sync import (
    Engine,
    EngineTurn,
    HistoryConfig,
    HistoryEntry,
    HistoryMessageTooLong,
    LLMContextMessage,
    SQLiteStore,
    TurnReason,
    TurnResponse,
)


class Desk(TypedDict):
    """What this engine keeps beside each entry."""

    desk: str


def transform(entry: HistoryEntry[Desk]) -> HistoryEntry[Desk]:
    """Strip the rationale, which no later turn needs, and note who answered."""
    response = entry.response and msgspec.structs.replace(entry.response, details=None)
    return msgspec.structs.replace(entry, response=response, meta={"desk": "north"})


def derive(
    entry: HistoryEntry[Desk], defaults: Callable[[], Sequence[LLMContextMessage]]
) -> Sequence[LLMContextMessage]:
    """Show injections as notes of the system, and turns as they are."""
    if entry.kind == "injection" and entry.meta:
        return [{"role": "system", "content": f"[{entry.meta['desk']}] {entry.message}"}]
    return defaults()


def respond(turn: EngineTurn) -> TurnResponse:
    """Answer as a model would; the rationale is recorded only if the transform lets it."""
    seen = len(turn.get_llm_context())
    return TurnResponse(user_message=f"{turn.user_intent}? Noted.", details={"rationale": f"saw {seen} messages"})


def show(engine: Engine[Desk], session: str) -> None:
    """Print what a model would see of a session."""
    for message in engine.get_llm_context(session):
        print(f"  {message['role']}: {message['content']}")


def main() -> None:
    """Take some turns under a cap, then look at the same sessions under a policy that keeps everything."""
    with SQLiteStore("engine.sqlite", namespace="desk") as store:
        config = HistoryConfig(
            store=store, max_entries=3, max_chars=200, transform_entry=transform, derive_llm_context=derive
        )
        engine = Engine(history=config, respond=respond)
        for wish in ("My name is Ada", "My order is 17", "It is late"):
            engine.turn("ada", wish)
        engine.turn("bob", [TurnReason(text="Open on Sunday"), TurnReason(kind="timer", text="noon")])
        engine.inject("ada", "The parcel left the depot.")
        print("ada, by the cap:")
        show(engine, "ada")
        print("bob, apart from her:")
        show(engine, "bob")
        try:
            engine.inject("ada", "x" * 201)
        except HistoryMessageTooLong as refused:
            print(f"refused: {refused.chars} characters, limit {refused.limit}")
        header = store.verify(store.key("ada"))
        print(f"{header.retained} of {header.entries} entries retained, chain sound from entry {header.cut.seq + 1}")
        files = b"".join(path.read_bytes() for path in Path().glob("engine.sqlite*"))
        print(
            "in the file:", "Ada" if b"Ada" in files else "no Ada", "and", "17" if b"order is 17" in files else "no 17"
        )
        keeping = HistoryConfig(store=store, max_entries=1, keep_truncated=True, derive_llm_context=derive)
        patient = Engine(history=keeping, respond=respond)
        patient.turn("ada", "Thank you")
        print("ada, by a policy that keeps what it drops:")
        show(patient, "ada")
        print(f"{len(list(patient.history.entries('ada')))} entries retained")


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    main()
