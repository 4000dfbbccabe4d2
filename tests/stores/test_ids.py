"""Ids are opaque and exact, and no namespace reaches another (I-32 to I-34, V-7, V-13, bad inputs 1 to 15)."""

from __future__ import annotations

import contextlib
import random
import string
import time
import unicodedata
import uuid
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budgets import budget
from tests.stores.labs import BOUNDED, KINDS, PROVE, chat, open_journal, said

from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryStoreFull,
    InvalidId,
    InvalidOption,
    MinutebookError,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import MAX_ID_BYTES, ConversationKey
from minutebook.stores.journal import JournalStore
from minutebook.testing import FaultyJournal, FrozenClock, drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import ODD_IDS, append, dump, say

PAIRS = budget(2_000, 200_000)
NASTY = [
    *":/\\|,.;%_*?[]{}()'\"`$#@&=+-~^<> \t\n\r\x1f\x7f\u00a0\u200b\u202e\ufeff\u0301",
    "a",
    "A",
    "b",
    "\u00e9",
    "\u0131",
]


class OddStr(str):
    """A str that lies about what it is equal to."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


REFUSED: dict[str, Any] = {
    "1-empty": "",
    "2-spaces": "   ",
    "2-blank": "\t\n\u2003",
    "3-nul": "a\0b",
    "3-nul-alone": "\0",
    "4-surrogate": "a\ud800",
    "4-surrogate-low": "\udfff",
    "5-64-kib": "x" * 65_536,
    "6-one-over": "x" * (MAX_ID_BYTES + 1),
    "6-one-over-in-bytes": "\u00e9" * (MAX_ID_BYTES // 2) + "x",
    "14-bytes": b"a",
    "14-int": 7,
    "14-none": None,
    "14-bool": True,
    "14-dict": {"$ne": ""},
    "14-list": ["a"],
    "14-tuple": ("a",),
    "14-str-subclass": OddStr("a"),
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_01_to_06_and_14_are_refused_everywhere(kind: str, bad: Any, tmp_path: Path) -> None:
    """Exactly `str`, not blank, at most 512 UTF-8 bytes, no NUL, no surrogate: at every public entry (V-7, 1-6, 14)."""
    journal = open_journal(kind, tmp_path)
    conversation = chat(journal)
    drive(conversation.append([{"role": "user", "content": "hi"}]))
    before = drive(dump(journal, conversation.key))
    for call in (
        lambda: ConversationKey("lab", bad),
        lambda: ConversationKey(bad, "chat"),
        lambda: JournalStore(journal, namespace=bad) if bad is not None else ConversationKey(bad, "chat"),
        lambda: JournalStore(journal).within(bad),
        lambda: conversation.store.key(bad),
        lambda: chat(journal, bad),
        lambda: conversation.turn("hi", id=bad) if bad else ConversationKey("", "a"),
        lambda: drive(journal.receipt(conversation.key, bad)),
        lambda: drive(journal.list(bad, "", 9)),
        lambda: drive(journal.totals(bad)),
        lambda: drive(append(journal, conversation.key, bad, say("x"))),
        lambda: drive(conversation.store.list(after=bad)) if bad != "" else ConversationKey("", "a"),
    ):
        with pytest.raises(InvalidId):
            call()
    assert drive(dump(journal, conversation.key)) == before
    assert len(drive(journal.list("lab", "", 9))) == 1


SURVIVES = {
    "6-at-the-limit": "x" * MAX_ID_BYTES,
    "6-at-the-limit-in-bytes": "\u00e9" * (MAX_ID_BYTES // 2),
    "7-parent": "../../x",
    "7-windows-parent": "..\\..\\x",
    "7-drive": "C:",
    "7-device": "CON",
    "7-dot": ".",
    "7-absolute": "/etc/passwd",
    "8-sql": "'; DROP TABLE minutebook_log; --",
    "8-percent": "%",
    "8-underscore": "_",
    "8-star": "*",
    "8-class": "[a-z]",
    "9-hash-slot": "{tag}",
    "9-newline": "a\nb",
    "9-crlf": "a\r\nQUIT\r\n",
    "10-nfc": "\u00e9",
    "10-nfd": "e\u0301",
    "11-bidi": "a\u202eb",
    "11-joiner": "a\u200db",
    "12-ansi": "\x1b[2J\x1b[31m",
    "13-colon": "b:c",
    "15-reserved": "minutebook_log",
    "15-dunder": "__class__",
    "15-key-name": "namespace",
    "15-null": "null",
}


@pytest.mark.parametrize("odd", SURVIVES.values(), ids=SURVIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_06_to_15_are_opaque(kind: str, odd: str, tmp_path: Path) -> None:
    """Any other string is an id like every one: written, read, listed, deleted, and told from all others (6-15)."""
    folder = tmp_path / "inside"
    folder.mkdir(mode=0o700)
    journal = open_journal(kind, folder)
    store = JournalStore(journal, namespace=odd)
    key = store.key(odd)
    others = [ConversationKey("lab", other) for other in ODD_IDS[:20]]
    for number, other in enumerate(others):
        drive(append(journal, other, "one", say(f"{number}")))
    drive(append(journal, key, odd, say("odd")))
    assert [listing.key for listing in drive(store.list())] == [key]
    assert drive(journal.receipt(key, odd)).idempotency == odd
    drive(store.verify(key))
    drive(store.delete(key))
    assert drive(store.list()) == ()
    for number, other in enumerate(others):
        assert [e.payload for e in drive(samples.entries(journal, other))] == [say(f"{number}").payload]
    assert {path.name for path in tmp_path.iterdir()} == {"inside"}


# --- pairs -----------------------------------------------------------------------------------------------------------


def odd_string(chance: random.Random) -> str:
    text = "".join(chance.choice(NASTY) for _ in range(chance.choice((1, 1, 2, 3, 5, 12))))
    if chance.random() < 0.02:
        text += chance.choice(string.ascii_letters) * (MAX_ID_BYTES - len(text.encode()))
    return text if text.strip() else text + "x"


def close_to(pair: tuple[str, str], chance: random.Random) -> tuple[str, str]:
    """Return a pair that some store would take for `pair`: joined, folded, normalised, trimmed or cut alike."""
    namespace, name = pair
    joined = namespace + chance.choice(("", ":", "/", "|", ".", "\x1f")) + name
    cut = chance.randrange(1, len(joined)) if len(joined) > 1 else 1
    candidates = [
        (joined[:cut], joined[cut:]),
        (namespace, name.swapcase()),
        (namespace.casefold(), name),
        (namespace, unicodedata.normalize(chance.choice(("NFC", "NFD", "NFKC")), name)),
        (namespace, name + chance.choice(" \t\u200b%_*")),
        (namespace, name[:-1]),
        (namespace, name.strip()),
        (name, namespace),
    ]
    namespace, name = chance.choice(candidates)
    fits = all(part.strip() and len(part.encode()) <= MAX_ID_BYTES for part in (namespace, name))
    return (namespace, name) if fits else pair


def near_pairs(count: int) -> list[tuple[str, str]]:
    """Return so many namespaces with ids, and beside each one that a careless store would take for it."""
    chance = random.Random(32)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < 2 * count:
        pair = odd_string(chance), odd_string(chance)
        pairs += [pair, close_to(pair, chance)]
    return sorted(set(pairs))


def met(journal: Any, pairs: list[tuple[str, str]]) -> int:
    """Write a text of its own under each pair, and return how many do not hold it alone."""
    for number, pair in enumerate(pairs):
        with contextlib.suppress(DecisionHistoryConflict):  # the same idempotency id with another's content
            drive(append(journal, ConversationKey(*pair), "one", say(f"{number}")))
    pages = (drive(journal.oldest(ConversationKey(*pair), 0, samples.EVERYTHING)) for pair in pairs)
    return sum([entry.payload for entry in page] != [say(f"{n}").payload] for n, page in enumerate(pages))


class Rekeyed(FaultyJournal):
    """A journal that finds its rows by something made of the key: the fault that the checks have to find."""

    def __init__(self, journal: Any, address: Callable[[str, str], tuple[str, str]]) -> None:
        super().__init__(journal)
        self.address = address

    def _key(self, key: ConversationKey) -> ConversationKey:
        return ConversationKey(*(sha256(part.encode()).hexdigest() for part in self.address(key.namespace, key.id)))

    async def reserve(self, key: ConversationKey, *positional: Any, **named: Any) -> Any:
        return await super().reserve(self._key(key), *positional, **named)

    async def oldest(self, key: ConversationKey, *positional: Any, **named: Any) -> Any:
        return await super().oldest(self._key(key), *positional, **named)

    async def list(self, namespace: str, *positional: Any) -> Any:
        return await super().list(self._key(ConversationKey(namespace, "x")).namespace, *positional)

    async def totals(self, namespace: str) -> Any:
        return await super().totals(self._key(ConversationKey(namespace, "x")).namespace)


FAULTS: dict[str, Callable[[str, str], tuple[str, str]]] = {
    "i32: joined": lambda namespace, name: ("all", namespace + name),
    "i32: no namespace": lambda _, name: ("all", name),
    "i33: folded": lambda namespace, name: (namespace, name.casefold()),
    "i33: normalized": lambda namespace, name: (namespace, unicodedata.normalize("NFC", name)),
    "i33: stripped": lambda namespace, name: (namespace, name.strip()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_i32_i33_control_keys_that_are_joined_or_folded_are_found(fault: str, tmp_path: Path) -> None:
    """The same pairs meet in a journal that joins, folds, normalizes or strips, and not where it does nothing."""
    pairs = near_pairs(2_000)
    assert met(Rekeyed(open_journal("RAM", tmp_path), FAULTS[fault]), pairs) > 0
    assert met(Rekeyed(open_journal("RAM", tmp_path), lambda namespace, name: (namespace, name)), pairs) == 0


@pytest.mark.timeout(3_600 if PROVE else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_i32_pairs_of_ids_never_meet(kind: str, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Pairs made to collide stay apart: each holds its own text, and its namespace lists it alone (I-32, I-33)."""
    journal = open_journal(kind, tmp_path)
    distinct = near_pairs(PAIRS)
    assert met(journal, distinct) == 0
    if kind == "hosted":
        return
    by_namespace: dict[str, list[str]] = {}
    for namespace, name in distinct:
        by_namespace.setdefault(namespace, []).append(name)
    for namespace, names in by_namespace.items():
        listed = [listing.key.id for listing in drive(journal.list(namespace, "", 10**6))]
        assert listed == sorted(names)
    figure(f"{kind}: {PAIRS:,} pairs, {len(distinct):,} distinct ids, 0 met")


@pytest.mark.parametrize("kind", KINDS)
def test_o41_different_keys_are_different_conversations(kind: str, tmp_path: Path) -> None:
    """The pairs of the case: never one shared history, or refused before any write (O-41)."""
    journal = open_journal(kind, tmp_path)
    keys = [ConversationKey("shop:eu", "7"), ConversationKey("shop", "eu:7")]
    keys += [
        ConversationKey("n", name) for name in ("tenant", "tenant ", "Tenant", "tenant\u200b", "\u00e9", "e\u0301")
    ]
    for number, key in enumerate(keys):
        drive(append(journal, key, "one", say(f"{number}")))
    for number, key in enumerate(keys):
        assert [e.payload for e in drive(samples.entries(journal, key))] == [say(f"{number}").payload]
    for refused in ("", "x" * 10_000):
        with pytest.raises(InvalidId):
            ConversationKey("n", refused)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None, database=None, derandomize=True)
@given(pair=st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=2))
def test_i33_any_two_texts_are_two_ids_or_refused(kind: str, pair: list[str]) -> None:
    """Whatever two texts hypothesis finds: equal ids are one conversation, different ones are two (I-33)."""
    journal = open_journal("RAM" if kind == "SQLite" else kind, Path(), name=uuid.uuid4().hex)
    try:
        keys = [ConversationKey("n", text) for text in pair]
    except InvalidId:
        return
    for number, key in enumerate(keys):
        drive(append(journal, key, f"{number}", say(f"{number}")))
    counts = [len(drive(samples.entries(journal, key))) for key in keys]
    assert counts == ([2, 2] if pair[0] == pair[1] else [1, 1])


# --- idempotency ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_v04_no_id_of_a_callers_meets_one_of_ours(kind: str, tmp_path: Path) -> None:
    """A caller's idempotency id that looks like the receipt of a recovery leaves both receipts their own (V-4)."""
    journal = open_journal(kind, tmp_path)
    key = ConversationKey("lab", "a")
    drive(append(journal, key, "recover-2", say("x")))
    first = drive(journal.receipt(key, "recover-2"))
    drive(journal.reserve(key, "token", format=samples.FORMAT))
    drive(journal.recover(key, None))
    assert drive(journal.receipt(key, "recover-2")) == first
    ids = [receipt.idempotency for receipt in drive(journal.receipts(key, 0, 9))]
    assert len(ids) == len(set(ids)) == 2
    drive(append(journal, key, "recover-2", say("x")))
    assert len(drive(samples.entries(journal, key))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_v04_no_id_of_a_callers_blocks_a_late_result(kind: str, tmp_path: Path) -> None:
    """A caller's id that looks like that of a late result does not keep the result from being recorded (V-4)."""
    conversation = chat(open_journal(kind, tmp_path))

    async def story() -> None:
        async with conversation.turn("hi") as turn:
            (call,) = await turn.respond(said("", "call-1"))
            await turn.park(call)
        await conversation.append([{"role": "user", "content": "x"}], id=f"result-{call.exchange}-{call.position}")
        first = await conversation.complete(call, "late")
        assert await conversation.complete(call, "late") == first

    drive(story())


# --- namespaces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_v13_no_call_reaches_another_namespace(kind: str, tmp_path: Path) -> None:
    """Every method of a store refuses a key of another namespace, and what is no key (V-7, V-13, SPEC D21)."""
    journal = open_journal(kind, tmp_path)
    mine, theirs = JournalStore(journal, namespace="mine"), JournalStore(journal, namespace="theirs")
    key = theirs.key("a")
    drive(append(journal, key, "one", say("secret")))
    before = drive(dump(journal, key))

    async def operation(record: Any) -> Any:
        raise AssertionError("the operation was called")

    async def consumed(stream: Any) -> None:
        async for _ in stream:
            raise AssertionError("something was read")

    for foreign in (key, ("theirs", "a"), "a", 7, None, {"namespace": "mine", "id": "a"}):
        for call in (
            lambda k: mine.read(k),
            lambda k: consumed(mine.entries(k)),
            lambda k: consumed(mine.receipts(k)),
            lambda k: mine.transact(k, operation),
            lambda k: mine.delete(k),
            lambda k: mine.recover(k, worker_stopped=True),
            lambda k: mine.header(k),
            lambda k: mine.verify(k),
        ):
            with pytest.raises(InvalidOption):
                drive(call(foreign))
    assert drive(dump(journal, key)) == before
    assert drive(mine.read(mine.key("a"))) is None
    assert drive(mine.list()) == ()
    with pytest.raises(InvalidOption):
        mine.within("theirs")
    with pytest.raises(InvalidOption):
        JournalStore(journal).key("a")


@pytest.mark.parametrize("kind", KINDS)
def test_o43_unknown_filters_and_odd_places_select_nothing_more(kind: str, tmp_path: Path) -> None:
    """Listing takes no unknown filter, and no text in `after` widens it beyond its namespace (V-8, O-43)."""
    journal = open_journal(kind, tmp_path)
    acme = JournalStore(journal, namespace="acme")
    for namespace in ("acme", "acme2", "other", "%", "*"):
        for name in ("a", "b", "%", "_", "*"):
            drive(append(journal, ConversationKey(namespace, name), "one", say("x")))
    ids = sorted(["a", "b", "%", "_", "*"])
    for after in ("%", "_", "*", "x') OR 1=1 --", "' OR ''='", "a"):
        listed = [listing.key for listing in drive(acme.list(after=after))]
        assert listed == [ConversationKey("acme", name) for name in ids if name > after]
    for unknown in ({"tenant": "acme"}, {"x') OR 1=1 --": 1}, {"filter": {}}, {"namespace": "other"}):
        with pytest.raises(TypeError):
            acme.list(**unknown)  # type: ignore[arg-type]
    for limit in (0, -1, True, "9", 1.0, None):
        with pytest.raises(InvalidOption):
            drive(acme.list(limit=limit))  # type: ignore[arg-type]
    for after in ("\0", "\ud800", "x" * 513, 7, None, b"a"):
        with pytest.raises(InvalidId):
            drive(acme.list(after=after))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BOUNDED)
def test_i34_a_full_neighbour_takes_nothing(kind: str, tmp_path: Path) -> None:
    """Capacity, totals and listings are each namespace's own: a neighbour can neither fill nor see it (I-34)."""
    check_neighbours(open_journal(kind, tmp_path, NARROW, FrozenClock()))


NARROW = StoreBounds(max_sessions=2, max_bytes=200, ttl_ms=1_000)


def test_i34_control_a_capacity_that_is_shared_is_found(tmp_path: Path) -> None:
    """Where all namespaces are one to the store, the neighbour is counted, listed and takes the room."""
    journal = open_journal("RAM", tmp_path, NARROW, FrozenClock())
    with pytest.raises(AssertionError):
        check_neighbours(Rekeyed(journal, lambda namespace, name: ("all", namespace + name)))


def check_neighbours(journal: Any) -> None:
    mine, theirs = JournalStore(journal, namespace="mine"), JournalStore(journal, namespace="theirs")
    empty = drive(mine.totals())
    for number in range(2):
        drive(append(journal, theirs.key(f"{number}"), "one", say("x")))
    with pytest.raises(DecisionHistoryStoreFull):
        drive(append(journal, theirs.key("2"), "one", say("x")))
    assert drive(mine.totals()) == empty
    assert drive(mine.list()) == ()
    drive(append(journal, mine.key("0"), "one", say("x")))


@pytest.mark.parametrize("kind", KINDS)
def test_i34_refusals_tell_nothing_of_neighbours(kind: str, tmp_path: Path) -> None:
    """An id that is held next door answers like one that is not there, in words, facts and time (I-34)."""
    journal = open_journal(kind, tmp_path)
    mine, theirs = JournalStore(journal, namespace="mine"), JournalStore(journal, namespace="theirs")
    drive(journal.reserve(theirs.key("held"), "t", format=samples.FORMAT))

    def told(call: Any) -> Any:
        try:
            return drive(call)
        except MinutebookError as error:
            return type(error), str(error), error.facts

    for method in (mine.read, mine.header, mine.delete, mine.verify, lambda k: mine.recover(k, worker_stopped=True)):
        assert told(method(mine.key("held"))) == told(method(mine.key("absent")))
    assert told(mine.delete(mine.key("held")))[0] is DecisionHistoryAbsent

    def spent(key: ConversationKey) -> float:
        best = 1.0
        for _ in range(50):
            begun = time.perf_counter()
            drive(mine.header(key))
            best = min(best, time.perf_counter() - begun)
        return best

    assert spent(mine.key("held")) < 10 * spent(mine.key("absent")) + 0.001


@pytest.mark.parametrize("kind", KINDS)
def test_i37_no_id_or_content_in_refusals(kind: str, tmp_path: Path) -> None:
    """No refusal, repr or note holds a message, a namespace, an id or a token (promise I-37)."""
    journal = open_journal(kind, tmp_path, StoreBounds(max_retained_bytes=300))
    canary = "canary-7f3a"
    store = JournalStore(journal, namespace=canary)
    key = store.key(canary)
    seen: list[str] = []

    def tell(call: Any) -> None:
        with pytest.raises(MinutebookError) as refused:
            drive(call)
        seen.append(f"{refused.value} {refused.value!r} {refused.value.facts} {refused.value.__cause__!r}")

    tell(store.delete(key))
    tell(store.verify(key))
    tell(append(journal, key, canary, samples.result(0, canary)))
    tell(append(journal, key, canary, say(canary * 50)))
    drive(append(journal, key, canary, say(canary)))
    tell(append(journal, key, canary, say(canary + "other")))
    drive(journal.reserve(key, canary, format=samples.FORMAT))
    tell(journal.reserve(key, canary, format=samples.FORMAT))
    tell(journal.delete(key))
    tell(journal.commit(key, "x", 9, samples.adding(canary, say(canary))))
    with pytest.raises(DecisionHistoryBusy):
        drive(store.read(key))
    entries = drive(samples.entries(journal, key))
    seen.append(f"{entries!r} {samples.adding('x', say(canary)).drafts!r} {said('x') and store!r}")
    assert canary not in " ".join(seen)
