"""
How a namespace lies in a cluster once the cluster, or one node of it, has lost what it held.

Real servers; what is lost is deleted there, so that the cluster is shared with other tests. What was acknowledged
afterwards is found by every store, or a store says why it cannot go on (I-1, I-29).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from servers.redis import Cluster, shared
from tests.stores.redis_lab import address

from minutebook.errors import InvalidOption
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.stores import redis_scripts
from minutebook.stores.redis import BUCKETS, RedisRemote, _bucket
from minutebook.stores.redis_scripts import Script
from minutebook.stores.remote_journal import RemoteJournal
from minutebook.testing import drive
from minutebook.testing.conformance import samples
from minutebook.testing.conformance.samples import append, say

BOUNDS = StoreBounds(max_sessions=100)
NAMES = [f"c{number}" for number in range(12)]
assert 0 not in {_bucket(name, BUCKETS) for name in NAMES}


class Counted(RedisRemote):
    """A remote that counts its round trips."""

    trips = 0

    async def _run(self, *arguments: Any, **named: Any) -> Any:
        self.trips += 1
        return await super()._run(*arguments, **named)


def opened(bounds: StoreBounds | None = None) -> tuple[RemoteJournal, Counted]:
    remote = Counted(address(many().url), bounded=bounds is not None, blocking=True)
    return RemoteJournal(remote, bounds), remote


def many() -> Cluster:
    found = shared("Redis cluster")
    assert isinstance(found, Cluster)
    return found


def lose(namespace: str, buckets: Iterable[int] = range(BUCKETS)) -> None:
    """Take away all that the cluster holds of some buckets."""
    for bucket in buckets:
        tag = b"minutebook:{%b}" % hashlib.sha256(b"%d\n%s" % (bucket, namespace.encode())).hexdigest().encode()
        server = many().master_of(tag + b"m")
        for key in server.ask("KEYS", tag + b"*"):
            server.ask("DEL", key)


def found_by(store: RemoteJournal, namespace: str) -> tuple[list[str], list[str]]:
    """Return which conversations a store lists, and which it finds by name."""
    listed = [each.key.id for each in drive(store.list(namespace, "", 99))]
    read = [name for name in NAMES if drive(store.header(ConversationKey(namespace, name))) is not None]
    return listed, read


def lost_under_a_store() -> tuple[str, RemoteJournal]:
    """Return a namespace that a store without bounds laid out, and that store, after the cluster lost it all."""
    namespace = f"{uuid.uuid4()}"
    store, _ = opened()
    for name in ("old", *NAMES):
        drive(append(store, ConversationKey(namespace, name), "one", say("x")))
    lose(namespace)
    return namespace, store


def test_i01_i29_what_is_acknowledged_after_a_loss_is_found_by_every_store() -> None:
    """A store that knew of 64 buckets writes the layout anew, which one with bounds then refuses (I-1, I-29)."""
    namespace, store = lost_under_a_store()
    for name in NAMES:
        drive(append(store, ConversationKey(namespace, name), "two", say("acknowledged")))
    bound, _ = opened(BOUNDS)
    for call in (
        append(bound, ConversationKey(namespace, "b"), "one", say("x")),
        bound.list(namespace, "", 9),
        bound.header(ConversationKey(namespace, "b")),
    ):
        with pytest.raises(InvalidOption, match="without bounds"):
            drive(call)
    for each in (store, opened()[0]):
        assert found_by(each, namespace) == (sorted(NAMES), NAMES)


def test_i01_i29_who_knew_the_layout_that_was_lost_takes_the_one_that_others_made() -> None:
    """After a store with bounds was first, the other one reads and writes where that does (I-1, I-29)."""
    namespace, store = lost_under_a_store()
    bound, _ = opened(BOUNDS)
    drive(append(bound, ConversationKey(namespace, NAMES[0]), "two", say("acknowledged")))
    assert drive(store.header(ConversationKey(namespace, NAMES[0]))) is not None
    for name in NAMES[1:]:
        drive(append(store, ConversationKey(namespace, name), "two", say("acknowledged")))
    for each in (bound, store, opened()[0], opened(BOUNDS)[0]):
        assert found_by(each, namespace) == (sorted(NAMES), NAMES)
    assert drive(bound.totals(namespace)).conversations == len(NAMES)


@pytest.mark.parametrize("writes", [False, True])
def test_i01_i29_bounds_begin_nothing_beside_the_buckets_of_other_nodes(writes: bool) -> None:
    """The node of the first bucket lost it: what the others hold is neither hidden nor begun beside (I-1, I-29)."""
    namespace = f"{uuid.uuid4()}"
    store, _ = opened()
    for name in NAMES:
        drive(append(store, ConversationKey(namespace, name), "one", say("x")))
    lose(namespace, [0])
    if writes:  # of a conversation whose bucket is still there
        drive(append(store, ConversationKey(namespace, NAMES[0]), "two", say("y")))
    bound, _ = opened(BOUNDS)
    with pytest.raises(InvalidOption, match="without bounds"):
        drive(append(bound, ConversationKey(namespace, "b"), "one", say("x")))
    for each in (store, opened()[0]):
        assert found_by(each, namespace) == (sorted(NAMES), NAMES)
        assert len(drive(samples.entries(each, ConversationKey(namespace, NAMES[0])))) == 1 + writes


def test_i29_control_a_script_that_asks_nobody_hides_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the question of the first bucket the same story leaves conversations that no fresh store finds."""

    def unasked(script: Script) -> Script:
        text = script.text.replace("return {nonce, 'unlaid', now}", "")
        assert text != script.text
        # SHA-1 is the name that the server gives a script, and nothing else.
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return Script(text, sha, script.keys, script.writes, script.takes, script.holds)

    for name in ("LOOK", "WRITE"):
        monkeypatch.setattr(redis_scripts, name, unasked(getattr(redis_scripts, name)))
    namespace, store = lost_under_a_store()
    for name in NAMES:
        drive(append(store, ConversationKey(namespace, name), "two", say("acknowledged")))
    bound, remote = opened(BOUNDS)
    remote._buckets[namespace] = 1  # it looks at no other bucket either
    drive(append(bound, ConversationKey(namespace, "b"), "one", say("x")))
    listed, _ = found_by(opened()[0], namespace)
    assert listed == ["b"]


@pytest.mark.parametrize(
    ("bounds", "trips"), [(None, [2, 3, 1]), (BOUNDS, [BUCKETS + 1, 1, 1])], ids=["spread", "bounded"]
)
def test_b1_the_layout_is_asked_for_once(bounds: StoreBounds | None, trips: list[int]) -> None:
    """A namespace's first write looks for it, and that of each bucket, of 64, once more; no other does (B1)."""
    namespace, (store, remote) = f"{uuid.uuid4()}", opened(bounds)
    first, second = NAMES[:2]
    assert _bucket(first, BUCKETS) != _bucket(second, BUCKETS)
    drive(store.header(ConversationKey(f"{uuid.uuid4()}", first)))  # tells the time
    found: list[int] = []
    for id_, name in (("one", first), ("two", second), ("three", second)):
        remote.trips = 0
        drive(append(store, ConversationKey(namespace, name), id_, say("x")))
        found.append(remote.trips)
    assert found == trips
