"""
Seals: what stands in a fake's answers where a service puts encrypted reasoning and signatures.

A service can tell whether such a text came from it and whether what it belongs to is still as it was. So can a fake: a
seal is two HMACs, one of the block alone and one of the block behind everything before it, in standard base64. It
always holds `+`, `/` and `=`, so that whoever decodes it and writes it another way is found out.

What is compared are values. White space between tokens and the order of keys are no content; every character of every
text is, and so is how a number is written: 1, 1.0 and "1" are three.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Any, Final

__all__ = ["Prefix", "Seal", "Verdict", "canonical"]

_MARK: Final = b"\xfb\xff\xbf"  # base64 gives "+/+/"
_HALF_BYTES: Final = 23  # with the mark 49 bytes, which base64 ends with "=="


def canonical(value: Any) -> bytes:
    """Return a JSON value as compact UTF-8 with sorted keys: the same bytes for the same value."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode(errors="surrogatepass")


class Verdict(StrEnum):
    """What a seal says of the place in which it is found."""

    VALID = "valid"
    FOREIGN = "foreign"
    """No seal of this fake, or the block is not the one that was sealed."""
    STALE = "stale"
    """The block is as it was, and something before it is not."""


class Prefix:
    """The digest of what stands before a block, grown value by value."""

    def __init__(self, *values: Any) -> None:
        """Begin with `values`."""
        self._hash = hashlib.sha256()
        for value in values:
            self.add(value)

    def add(self, value: Any) -> None:
        """Let `value` be the last before what comes."""
        data = canonical(value)
        self._hash.update(b"%d:%b" % (len(data), data))

    def digest(self) -> bytes:
        """Return the digest of all that was added."""
        return self._hash.digest()


class Seal:
    """Makes and checks seals under one secret; two fakes with the same secret accept each other's."""

    def __init__(self, secret: bytes) -> None:
        """Take the secret, which stands for the service's own key."""
        self._secret = secret

    def of(self, block: Any, prefix: bytes = b"") -> str:
        """Return the seal of a block behind the prefix of this digest."""
        return b64encode(_MARK + b"".join(self._halves(block, prefix))).decode()

    def verdict(self, seal: Any, block: Any, prefix: bytes = b"") -> Verdict:
        """Return whether `seal` is this block's, behind this prefix."""
        halves = self._halves(block, prefix)
        if seal == b64encode(_MARK + b"".join(halves)).decode():
            return Verdict.VALID
        try:
            # Decoded without `validate`, other characters would be passed over and two texts be one seal.
            found = b64decode(seal, validate=True) if type(seal) is str else b""
        except ValueError:
            found = b""
        told = len(found) == len(_MARK) + 2 * _HALF_BYTES and found.startswith(_MARK + halves[0])
        return Verdict.STALE if told else Verdict.FOREIGN

    def id(self, kind: str, *of: bytes) -> str:
        """Return an id such as `call_5f…`, the same for the same bytes and for no others."""
        return f"{kind}_{self._digest(b'id', kind.encode(), *of).hex()[:24]}"

    def _halves(self, block: Any, prefix: bytes) -> tuple[bytes, bytes]:
        data = canonical(block)
        return self._digest(b"block", data)[:_HALF_BYTES], self._digest(b"bound", prefix, data)[:_HALF_BYTES]

    def _digest(self, *parts: bytes) -> bytes:
        return hmac.digest(self._secret, b"".join(b"%d:%b" % (len(part), part) for part in parts), "sha256")
