"""What was sent: the part of a receipt that answers «what did the model see at that step?» (SPEC C3)."""

from __future__ import annotations

import msgspec


class Sent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request's window, by numbers and a digest; from the record alone the same bytes can be made again."""

    first: int = 0
    """The `seq` of the oldest exchange or input in the window; 0 for an empty one."""
    last: int = 0
    units: int = 0
    messages: int = 0
    bytes: int = 0
    digest: str = ""
    """SHA-256 of the window's JSON, in hexadecimal."""
    max_messages: int = 0
    max_bytes: int = 0
    trimmed: bool = False
    """Whether older exchanges stayed out."""
    summary: int = 0
    """The `seq` of the summary that it shows; 0 for none."""
    cut_at: int = 0
    """Responses up to this `seq` were made under another start of the window: reasoning that binds is stale there."""
    stripped: int = 0
    """How many responses were sent without their stale reasoning."""
    counted_tokens: int | None = None
    """Input tokens by the provider's counting endpoint, before generation."""
    reserved_tokens: int | None = None
    """What the count reserved of the model's window, its output allowance included."""
    window_tokens: int | None = None
    """The model's window by the application's word, where requests are held to one."""
    billed_tokens: int | None = None
    """Input tokens by the provider's own account, after generation."""


encode_sent = msgspec.json.Encoder().encode
decode_sent = msgspec.json.Decoder(Sent).decode
