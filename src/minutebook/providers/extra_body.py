"""Further fields of each request, as a program gives them: none that is ours, and none that the guard cannot count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from minutebook.errors import InvalidOption, ProviderContextCountUnavailable
from minutebook.model import codec
from minutebook.providers.counting import COUNTINGS, Refusal, reason
from minutebook.providers.explicit import check_content, check_explicit

if TYPE_CHECKING:
    from minutebook.model.codec import JSON
    from minutebook.providers.decision import Api


def extra_fields(api: Api, extra: object, *, count: bool) -> dict[str, bytes]:
    """
    Return `extra_body` by fields, each as the bytes that are sent, for requests that are counted or not.

    Raises:
        InvalidOption: it is no mapping, or a field is ours, hides something that the model sees, or cannot be counted.
        InvalidValue: a value that JSON cannot hold.
    """
    if not isinstance(extra, Mapping):
        raise InvalidOption(f"extra_body is a mapping of fields, not {type(extra).__name__}", option="extra_body")
    extra = cast("Mapping[str, JSON]", extra)
    fields = {codec.text(name, "extra_body"): codec.encode(value) for name, value in extra.items()}
    for name, value in extra.items():
        if name in api.own:
            raise InvalidOption(f"the field {name!r} is set here, or would change what the model sees", option=name)
        if name in api.shared:
            _check_members(name, value, api.shared[name])
    _check_explicit(api, {name: codec.decode(value) for name, value in fields.items()}, count=count)
    return fields


def _check_explicit(api: Api, extra: Mapping[str, JSON], *, count: bool) -> None:
    """Hold further fields to what the guard holds a request to; to be known only where requests are counted."""
    counting = COUNTINGS[api.name]
    check = check_explicit if count else check_content
    refusal: InvalidOption
    try:
        check(counting, {**counting.required, **extra})
    except ProviderContextCountUnavailable as error:
        field = error.field or ""
        why = reason(Refusal(error.provider_error_code or ""), field)
        refusal = InvalidOption(f"extra_body cannot be sent: {why}", option=field or "extra_body")
    else:
        return
    raise refusal


def _check_members(name: str, value: object, own: frozenset[str]) -> None:
    """Refuse members of a shared field that are ours, and a value that has no members."""
    if not isinstance(value, dict):
        raise InvalidOption(f"the field {name!r} is an object", option=name)
    taken = sorted(own & cast("dict[str, JSON]", value).keys())
    if taken:
        raise InvalidOption(
            f"the member {taken[0]!r} of {name!r} is set here, or would change what the model sees", option=name
        )
