"""Drafts, ids and pages that the checks are made of: none is of a provider's format, since no store looks inside."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import msgspec

from minutebook.model.entries import Call, Draft, Entry, Kind
from minutebook.model.keys import ConversationKey
from minutebook.model.record import Delta
from minutebook.ports import STREAM_PAGE

if TYPE_CHECKING:
    from minutebook.ports import Journal

FORMAT = "conformance"
KEY = ConversationKey("suite", "conversation")
EVERYTHING = STREAM_PAGE

ODD_IDS = (
    "a",
    "A",
    " a",
    "a ",
    "a\t",
    "a:b",
    "a/b",
    "a\\b",
    "a|b",
    "a,b",
    "a.b",
    "a\x1fb",
    "a\nb",
    "a\r\nb",
    "a%",
    "a_",
    "a*",
    "a?",
    "[a-z]",
    "{a}",
    "{a}b",
    "'; DROP TABLE entry; --",
    '"a"',
    "../a",
    "..\\a",
    "C:",
    "CON",
    ".",
    "null",
    "namespace",
    "entry",
    "__proto__",
    "\u00e9",
    "e\u0301",
    "\u0430",
    "\uff41",
    "a\u200b",
    "a\u202e",
    "\u0131",
    "I",
    "i",
    "stra\u00dfe",
    "strasse",
    "\ufb01",
    "fi",
    "\x1b[31ma",
    "\U0001f600",
    "\ufffd",
    "a" * 511,
    "a" * 512,
    "\u00e9" * 256,
)
"""Ids that some database folds, trims, normalises, splits, escapes or cuts (promises I-32, I-33)."""

JOINED = (("a", "b:c"), ("a:b", "c"), ("a/b", "c"), ("a", "b/c"), ("a|b", "c"), ("a", "b|c"), ("ab", "c"), ("a", "bc"))
"""Pairs that are one string once they are joined, with a separator or without."""


def say(text: str) -> Draft:
    """Return an input."""
    return _draft(Kind.INPUT, {"role": "user", "content": text})


def answer(text: str, *calls: str) -> Draft:
    """Return a response, with calls of these ids."""
    return _draft(Kind.RESPONSE, {"role": "assistant", "content": text}, tuple(Call(call, "work") for call in calls))


def result(position: int, text: str, exchange: int = 0) -> Draft:
    """Return what answers the call at `position`."""
    return _draft(Kind.RESULT, {"role": "tool", "content": text}, call=position, exchange=exchange)


def _draft(kind: Kind, message: object, calls: tuple[Call, ...] = (), call: int = 0, exchange: int = 0) -> Draft:
    payload = json.dumps(message, ensure_ascii=False).encode()
    size = len(payload)
    return Draft(
        kind=kind, payload=payload, messages=1, size=size, stop=size, calls=calls, call=call, exchange=exchange
    )


def adding(id: str, *drafts: Draft, **flags: object) -> Delta:  # noqa: A002 - the field's standard word
    """Return a delta under an idempotency id."""
    return Delta(drafts=drafts, idempotency=id, **flags)  # type: ignore[arg-type]


async def append(journal: Journal, key: ConversationKey, id: str, *drafts: Draft) -> None:  # noqa: A002
    """Record drafts in one write without a hold."""
    await journal.reserve(key, f"token-{id}", format=FORMAT, opening=adding(id, *drafts), release=True)


async def entries(journal: Journal, key: ConversationKey) -> tuple[Entry, ...]:
    """Return the whole log, oldest first."""
    found: list[Entry] = []
    while page := await journal.oldest(key, found[-1].seq if found else 0, EVERYTHING):
        if found and page[0].seq <= found[-1].seq:
            break  # a journal whose numbers go back would be read for ever
        found.extend(page)
    return tuple(found)


async def dump(journal: Journal, key: ConversationKey) -> str:
    """Return a digest over everything that a conversation holds: what must stay the same when a write is refused."""
    # By value: what a repr leaves out would go unseen.
    seen = hashlib.sha256(msgspec.json.encode(await journal.header(key)))
    for entry in await entries(journal, key):
        seen.update(msgspec.json.encode(entry))
    for receipt in await journal.receipts(key, 0, EVERYTHING.rows):
        seen.update(msgspec.json.encode(receipt))
    return seen.hexdigest()
