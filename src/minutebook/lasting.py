"""
Which failures of a provider last: the same request fails again until it, the account or the server is another.

The words are the providers' own, as far as they are passed on, and this library's (SPEC D9). Every other one passes.
"""

from __future__ import annotations

from typing import Final

LASTING_OF_OPENAI: Final = frozenset(
    {
        "bio_policy",
        "content_policy_violation",
        "context_length_exceeded",  # every provider's overflow is told under this one
        "data_residency_mismatch",
        "empty_image_file",
        "image_content_policy_violation",
        "image_file_not_found",
        "image_file_too_large",
        "image_parse_error",
        "image_too_large",
        "image_too_small",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_base64_image",
        "invalid_encrypted_content",
        "invalid_function_parameters",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "invalid_json_schema",
        "invalid_prompt",
        "invalid_request_error",
        "misalignment_policy_violation",
        "missing_required_parameter",
        "model_not_found",
        "not_found_error",
        "unknown_parameter",
        "unsupported_image_media_type",
        "unsupported_parameter",
        "unsupported_value",
    }
)
"""Of OpenAI and of servers that speak its formats."""
_OF_ANTHROPIC: Final = frozenset(
    {
        "authentication_error",
        "billing_error",
        "permission_error",
        "tool_reference_unresolved",
    }
)
_OF_GEMINI: Final = frozenset(
    {
        "ALREADY_EXISTS",
        "API_KEY_INVALID",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
_OWN: Final = frozenset(
    {
        "body_not_json",
        "body_streamed",
        "client_failed",
        "encoded_count",
        "field_twice",
        "header_refused",
        "host_refused",
        "no_count",
        "no_output_limit",
        "outside_content",
        "path_refused",
        "response_too_large",
        "server_state",
        "server_tool",
        "several_answers",
        "stream_unknown",
        "unknown_field",
    }
)
"""Of a request that cannot be counted as it stands, a limit here, a server that counts or streams in another way."""
_LASTING: Final = LASTING_OF_OPENAI | _OF_ANTHROPIC | _OF_GEMINI | _OWN
_PASSING_STATUSES: Final = (408, 409, 429, 499)
_UNSPECIFIC: Final = "invalid_request_error"
"""What OpenAI calls whatever it answers under 4xx, a lock that was not had in time (409) among it."""


def passes(code: str | None, status: int | None) -> bool:
    """
    Return whether a failure may be gone when the same request is sent again.

    The code is asked first: what a provider tells inside a stream, or of a request that is wrong, has a status that
    says nothing of it. Where a code is in no table, a failure under 2xx came after the request was taken.
    """
    if code == _UNSPECIFIC and status in _PASSING_STATUSES:
        return True
    if code in _LASTING:
        return False
    return status is None or status < 300 or status in _PASSING_STATUSES or status >= 500
