"""What the errors of both OpenAI APIs are called, and which official client posts to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.lasting import LASTING_OF_OPENAI
from minutebook.providers.decision import text_at
from minutebook.providers.sdk_http import Sdk

if TYPE_CHECKING:
    from minutebook.model.codec import JSON

_PASSING: Final = (
    *("rate_limit_exceeded", "server_error", "vector_store_timeout", "failed_to_download_image"),
    *("overloaded", "timeout", "internal_error"),  # of compatible servers
)
_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    **{code: code for code in (*LASTING_OF_OPENAI, *_PASSING)},
}
"""The providers' codes that are passed on. A closed table, since a body could hold anything, a key among it."""


def known_code(error: JSON) -> str | None:
    """Return the code of a provider's error object, or its type; `None` for one not in the table."""
    named = (_CODES.get(text_at(error, key)) for key in ("code", "type"))
    return next((code for code in named if code), None)


OPENAI: Final = Sdk(
    package="openai",
    blocking="OpenAI",
    asynchronous="AsyncOpenAI",
    base_error="OpenAIError",
    key="OPENAI_API_KEY",
    sender="_send_request",
    versions="3.50 to 3.57",
    code=lambda _, error: known_code(error),
)
