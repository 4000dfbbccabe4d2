"""
What one request of a chat holds of its history: the newest exchanges within the limits, and what stands beside them.

The core plans the window. Beside it go the instructions that the window leaves out, which outlive what was said, and
the context of the newest message; both count within the same limits. Nothing here is recorded or sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import DecisionHistoryLimitExceeded
from minutebook.model import codec
from minutebook.model.shown import type_alone
from minutebook.policy.shortening import before_window, first_input, left_out, opening_input
from minutebook.providers.chat import behind, with_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from minutebook.model.bounds import WindowLimits
    from minutebook.policy.shortening import Said
    from minutebook.windows import Window

    Windowed = Callable[[WindowLimits, int], Awaitable[Window]]
    """What makes a window within limits, of what stands behind a `seq`."""


class FittedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a request, the prompt left out, and which messages of the history they hold."""

    json: bytes
    opening: int
    """The `seq` of the user's message that it begins with; 0 if there is none."""
    whole: bool
    """Whether no message of the history had to leave for the limits."""

    __repr__ = type_alone


def refuse_context(told: str, limits: WindowLimits) -> None:
    """
    Refuse a context, as it is sent, that no request has room for, whatever leaves it.

    Raises:
        DecisionHistoryLimitExceeded: it is of more bytes of JSON than a request may have.
    """
    size = len(codec.encode(told))
    if size > limits.max_bytes:
        raise DecisionHistoryLimitExceeded(
            f"the context needs {size:,} bytes and the limit of a request is {limits.max_bytes:,}, so nothing was sent "
            "or recorded; give a shorter context or raise limits=",
            bytes=size,
            max_bytes=limits.max_bytes,
        )


async def fitted_request(
    said: Sequence[Said], limits: WindowLimits, windowed: Windowed, context: str | None = None
) -> FittedRequest:
    """
    Return a history as it is sent within `limits`: the oldest exchanges leave whole, instructions stay.

    Each round knows better what stands beside the window and leaves that much room for it. What stands there only
    grows as the window shrinks, so there are at most as many rounds as there are instructions, and two more.

    `context` is what is told for the newest message alone, as it is sent.

    Raises:
        DecisionHistoryLimitExceeded: the newest message, the exchange before it, the context and the instructions
            alone exceed a limit.
    """
    first = first_input(said)
    head = [each.entry.fragment for each in before_window(said, first)]
    count, size = len(head), sum(len(each) + 1 for each in head)
    while True:
        window = await _window(limits, count, size, windowed, first - 1)
        opening = opening_input(said, window.sent.first)
        head = [each.entry.fragment for each in left_out(said, opening, window.sent.first)]
        messages = behind(head, window.json if context is None else with_context(window.json, context))
        if len(head) + len(window) <= limits.max_messages and len(messages) <= limits.max_bytes:
            return FittedRequest(json=messages, opening=opening, whole=opening == first)
        count, size = max(count, len(head)), max(size, len(messages) - len(window.json))


async def _window(limits: WindowLimits, count: int, size: int, windowed: Windowed, floor: int) -> Window:
    """Return the window beside so many messages and bytes, or refuse with the numbers of the whole request."""
    least, summary = (0, 0), 0
    if count < limits.max_messages and size < limits.max_bytes:
        room = msgspec.structs.replace(
            limits, max_messages=limits.max_messages - count, max_bytes=limits.max_bytes - size
        )
        try:
            return await windowed(room, floor)
        except DecisionHistoryLimitExceeded as error:
            least, summary = (error.messages or 0, error.bytes or 0), error.summary_bytes or 0
    messages, needed = least[0] + count, least[1] + size + summary
    raise DecisionHistoryLimitExceeded(
        f"the newest message and the exchange before it must be sent and need {messages:,} messages and "
        f"{needed:,} bytes, of which {count:,} and {size:,} are instructions and context and {summary:,} bytes the "
        f"summary; limits are {limits.max_messages:,} and {limits.max_bytes:,}. Say less, have tools return less, "
        "raise limits=, have summarize_history(keep_recent_count=0) take the history's place, or a shorter "
        "set_conversation_summary(text), or None, the summary's",
        messages=messages,
        bytes=needed,
        summary_bytes=summary,
        max_messages=limits.max_messages,
        max_bytes=limits.max_bytes,
    )
