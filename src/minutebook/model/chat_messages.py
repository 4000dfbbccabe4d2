"""What a message of a chat's history is to those who read and write it, and a chat carried elsewhere (SPEC A3, A4)."""

# No lazy annotations here: with them a TypedDict of Python 3.11 takes a NotRequired key for a required one.
from typing import Final, NotRequired, TypedDict, cast

from minutebook.model.turns import Role

ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant", "developer")
"""The roles of messages in a history."""


class ConversationMessage(TypedDict):
    """
    One message of a chat's history, as `get_history` returns it and `add_to_history` takes it.

    `name` says who speaks where several do.
    """

    role: Role
    content: str
    name: NotRequired[str]


class ConversationState(TypedDict):
    """A chat as plain JSON, as `export_conversation_state` returns it (SPEC A3)."""

    history: list[ConversationMessage]
    agent_id: str
    """A UUID."""
    agent_name: str
    timestamp: int
    """Unix milliseconds, by the store's clock."""
    summary: str | None


def role_of(message: object) -> Role | None:
    """Return who speaks in a message; `None` where it is none of a chat."""
    told: object = cast("dict[object, object]", message).get("role") if isinstance(message, dict) else None
    return next((role for role in ROLES if role == told), None)
