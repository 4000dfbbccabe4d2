"""What the errors of both OpenAI APIs are called, and which official client posts to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minutebook.providers.decision import text_at
from minutebook.providers.sdk_http import Sdk

if TYPE_CHECKING:
    from minutebook.model.codec import JSON

_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    **{
        code: code
        for code in (
            "context_length_exceeded",
            "rate_limit_exceeded",
            "insufficient_quota",
            "invalid_api_key",
            "model_not_found",
            "server_error",
            "invalid_encrypted_content",
            "invalid_json_schema",
            "invalid_function_parameters",
            "unsupported_parameter",
            "unsupported_value",
            "unknown_parameter",
            "missing_required_parameter",
            "content_policy_violation",
            "invalid_request_error",
            "not_found_error",
            # what a Responses answer that failed, or its stream, is told under
            "vector_store_timeout",
            "failed_to_download_image",
            "bio_policy",
            "data_residency_mismatch",
            "empty_image_file",
            "image_content_policy_violation",
            "image_file_not_found",
            "image_file_too_large",
            "image_parse_error",
            "image_too_large",
            "image_too_small",
            "invalid_base64_image",
            "invalid_image",
            "invalid_image_format",
            "invalid_image_mode",
            "invalid_image_url",
            "invalid_prompt",
            "misalignment_policy_violation",
            "unsupported_image_media_type",
            # of compatible servers
            "overloaded",
            "timeout",
            "internal_error",
        )
    },
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
