"""
What a chat records of what its calls came to: the tools' messages, and which calls the library refused itself.

A text cannot say that: a tool may give any. So the message of a call that was not executed ends with a line feed behind
its JSON, which nothing that a tool gives can put there. No request holds it, and whoever goes on with the turn later
tells from it what counts against the budgets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.model import codec
from minutebook.providers.chat import CHAT_WIRE
from minutebook.providers.native import Native
from minutebook.providers.openai_chat import CHAT
from minutebook.runtime.observations import was_executed

if TYPE_CHECKING:
    from minutebook.model.codec import JSON
    from minutebook.model.decisions import Observation
    from minutebook.model.entries import Call, Draft, Entry

_REFUSED: Final = b"\n"


class ChatInterface(Native):
    """Tool calling, with a mark on the results of calls that were not executed."""

    def result(self, position: int, call: Call, observation: Observation) -> Draft:
        """Return the tool's message as `Native` does; what is sent of it is the same either way."""
        draft = super().result(position, call, observation)
        if was_executed(observation):
            return draft
        return msgspec.structs.replace(draft, payload=draft.payload + _REFUSED)


CHAT_INTERFACE: Final = ChatInterface(CHAT_WIRE, CHAT)


def told_in(result: Entry) -> JSON:
    """Return the text that the model was told as what a call came to."""
    message = codec.reread(result.fragment)
    return message["content"] if isinstance(message, dict) else None


def refusal_in(result: Entry) -> JSON:
    """Return the refusal that a result tells of a call that was not executed; `None` where it was."""
    if not result.payload.endswith(_REFUSED):
        return None
    told = codec.decode(str(told_in(result)).encode())
    return told["error"] if isinstance(told, dict) else None
