"""
One script sent to the node that has its keys, and its answer: routing, the check of every connection, and refusals.

The routing is ours and redis-py's connections are under it, since two things have to hold that its cluster clients do
not promise: that a command whose reply was lost is not sent again (a script may have been run), and that a connection
is closed by whatever interrupts it. What for certain was not run, as the server says by MOVED, ASK, TRYAGAIN,
CLUSTERDOWN, LOADING and BUSY, or as a connection shows that was refused by a cluster's node, is tried again until the
deadline.

A server that has become a replica refuses writes, and reads too, since each script looks at the role. Whoever is behind
its name by now is asked instead, over a new connection: after a failover a name leads to another server, and what was
connected before still to the old one.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from minutebook.errors import StorageError
from minutebook.stores.redis_address import Node, is_place
from minutebook.stores.redis_links import AsyncLinks, BlockingLinks, NoRoom
from minutebook.stores.redis_refusals import (
    DEMOTED,
    DENIED,
    TOO_LONG,
    UNTRUSTED,
    is_occupied,
    no_room,
    reason_of,
    refusal,
    unconnected,
)
from minutebook.stores.redis_servers import SYNCED, check_server, is_appended, is_synced, read_settings
from minutebook.stores.redis_sockets import unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minutebook.stores.redis_address import Address
    from minutebook.stores.redis_links import Link, Links
    from minutebook.stores.redis_scripts import Script

LOOKED_SECONDS: Final = 10.0
"""
After how long the server behind a connection is looked at again: what `durable` says, and what would make the server
unfit, is at most so old where the connection is used.
"""

_REST_SECONDS: Final = 0.05
_LEAST_SECONDS: Final = 0.1
"""How much time has to be left for a command that is sent again: nobody would hear what became of it."""
_SETTLED_OTHERWISE: Final = (TryAgainError, ClusterDownError)
_LAST_SLOT: Final = 16_383
_UNKNOWN: Final = ("", "?")
"""What a cluster calls a host where a node's endpoint is not known, or its name."""


class _Unsent(Exception):
    """A connection could not be made: whatever was to be sent was not."""


class Wire:
    """
    Scripts and their answers, over a single server or a cluster, in one colour.

    After a fork or a close nobody asks it anything: the journal sees to that.
    """

    def __init__(self, address: Address, *, blocking: bool) -> None:
        """Connect nothing yet."""
        self._address = address
        self._links: Links = BlockingLinks(address) if blocking else AsyncLinks(address)
        self._slots: dict[int, Node] = {}
        self._named: tuple[Node, ...] = ()
        """Every node that the cluster's last map named, whether it has slots or follows one that has."""
        self._rounds = itertools.count()
        self._instance = os.urandom(12)
        self._requests = itertools.count()
        self._durable: dict[Node, bool] = {}

    @property
    def cluster(self) -> bool:
        """Whether the keys are spread over the nodes of a cluster."""
        return self._address.cluster

    @property
    def durable(self) -> bool:
        """Whether every node that was met, and still counts, says that what it acknowledged is on its disk."""
        return bool(self._durable) and all(self._durable.values())

    async def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[object]) -> list[Any]:
        """
        Run a script and return its answer behind the nonce.

        Raises:
            DecisionHistoryStorageFailed: the server or the connection failed; a write may have been made, unless
                `problem` says `out_of_memory`.
            DecisionHistoryStorageLocked: no connection was free before the deadline; nothing was sent.
            DecisionHistoryStorageUnsafe: a setting, a role or a right is missing; nothing was written.
            DecisionHistorySchemaUnsupported: another application's key, or a server too old; nothing was written.
        """
        with self._links.section as inside, inside:
            return await self._ran(script, keys, arguments)

    async def _ran(self, script: Script, keys: Sequence[bytes], arguments: Sequence[object]) -> list[Any]:
        nonce = self._instance + next(self._requests).to_bytes(8, "big")
        behind = (len(keys), *keys, nonce, *arguments)
        until = time.monotonic() + self._address.timeout
        try:
            answer: Any = await self._routed(keys[0], ("EVALSHA", script.sha, *behind), nonce, until)
            if isinstance(answer, NoScriptError):
                answer = await self._routed(keys[0], ("EVAL", script.text, *behind), nonce, until)
        except (NoRoom, _Unsent, RedisError, OSError) as error:
            failed = self._failure(error, writes=script.writes)
        else:
            if not isinstance(answer, Exception):
                return list(answer[1:])
            failed = refusal(answer, writes=script.writes)
        try:
            # Out here, so that no traceback leads to words of the server, which may quote what was sent to it.
            raise failed
        finally:
            del failed  # a frame that knows the error which came through it keeps it until the collector runs

    def _failure(self, error: BaseException, *, writes: bool) -> StorageError:
        if isinstance(error, NoRoom):
            return no_room(self._address)
        if isinstance(error, _Unsent):
            return unconnected(error.__cause__, self._address)
        return refusal(error, writes=writes)

    async def close(self) -> None:
        """Close every connection, those in use as their calls end; a second call does nothing."""
        await self._links.close()

    # --- routing -----------------------------------------------------------------------------------------------------

    async def _routed(self, key: bytes, command: tuple[Any, ...], nonce: bytes, until: float) -> Any:
        """Return the answer to a command, or the error that is one, from the node that has the key."""
        slot = key_slot(key) if self.cluster else 0
        node, asking = await self._node(slot, until), False
        answer: Any = None
        while True:
            try:
                answer = await self._exchange(node, command, until, nonce, asking=asking)
            except _Unsent as unsent:
                if not (self.cluster or is_occupied(unsent.__cause__)) or _is_untrusted(unsent):
                    self._slots = {}
                    raise
                answer = _rather(None if isinstance(answer, AskError) else answer, unsent)  # that sent on, or ahead
            except (RedisError, OSError):
                self._slots = {}
                raise
            asking = False
            if _is_demoted(answer):
                self._links.forget(node)
                answer = ReadOnlyError()
            if isinstance(answer, MovedError):
                node = self._slots[slot] = _told(answer, node)
            elif isinstance(answer, AskError):
                node, asking = _told(answer, node), True
            elif not (isinstance(answer, (*_SETTLED_OTHERWISE, _Unsent, ReadOnlyError)) or is_occupied(answer)):
                return answer
            if time.monotonic() + (0 if isinstance(answer, AskError) else _REST_SECONDS + _LEAST_SECONDS) > until:
                raise answer
            if not isinstance(answer, AskError):
                await self._links.rest(_REST_SECONDS)
                self._slots = {}
                node = await self._node(slot, until)

    async def _node(self, slot: int, until: float) -> Node:
        """Return who has a slot, as the cluster says now or said lately."""
        if not self.cluster:
            return self._address.nodes[0]
        failed: Exception | None = None
        while (node := self._slots.get(slot)) is None:
            failed = _rather(failed, await self._ask_around(slot, until))
            if slot in self._slots:
                continue
            if time.monotonic() > until or _is_untrusted(failed):
                raise failed or ClusterDownError("CLUSTERDOWN no node has the slot")
            await self._links.rest(_REST_SECONDS)
        return node

    async def _ask_around(self, slot: int, until: float) -> Exception | None:
        """
        Learn who has which slot from the first node that knows of this one, or return how one failed that did not.

        A node that was reset, or that the others forgot, still answers, and its map is empty or old. So each time
        another node is asked first, and one that does not know, is no node any more or denies the user is passed over.

        Raises:
            StorageError, RedisError: every node is unfit, or denies the user: no later attempt finds anything else.
        """
        failed: Exception | None = None
        refused: Exception | None = None
        nodes = list(dict.fromkeys((*self._named, *self._address.nodes)))
        first = next(self._rounds) % len(nodes)
        for number, node in enumerate((*nodes[first:], *nodes[:first])):
            # One that says nothing leaves the others their share of the time.
            share = (until - time.monotonic()) / (len(nodes) - number)
            try:
                answer = await self._exchange(node, ("CLUSTER", "SLOTS"), until, share=share)
            except (StorageError, *DENIED) as error:
                refused = refused or error
                continue
            except (_Unsent, RedisError, OSError) as error:
                # Whatever this was asked for, what is to be asked has not been.
                failed = _rather(failed, error if isinstance(error, _Unsent) else _unsent_for(error))
                continue
            if isinstance(answer, Exception):
                failed = _rather(failed, answer)
                continue
            try:
                slots, named = _slot_map(answer, node)
            except RedisConnectionError as error:
                failed = _rather(failed, _unsent_for(error))
                continue
            if slot in slots:
                self._slots, self._named = slots, named
                self._keep_only(set(slots.values()))
                return None
            failed = _rather(failed, ClusterDownError("CLUSTERDOWN no node has the slot"))
        try:
            if refused is not None and failed is None:
                raise refused
            return failed
        finally:
            del refused

    def _keep_only(self, serving: set[Node]) -> None:
        """Forget the nodes that have no slots: nothing is written to them, so what they say of disks does not count."""
        for node in [node for node in list(self._durable) if node not in serving]:
            self._durable.pop(node, None)
            self._links.forget(node)

    async def _exchange(
        self,
        node: Node,
        command: tuple[Any, ...],
        until: float,
        nonce: bytes = b"",
        *,
        asking: bool = False,
        share: float = math.inf,
    ) -> Any:
        """
        Return a node's answer, or the error that it answered with; whatever is raised closes the connection.

        Once there is room for one, the node has a `share` of the time, in seconds.
        """

        async def asked(link: Link) -> Any:
            ends = min(until, time.monotonic() + share)
            await self._opened(node, link, ends)
            *_, answer = await link.exchange((("ASKING",), command) if asking else (command,), ends)
            if nonce and not isinstance(answer, Exception):
                _check_canary(answer, nonce)
            return answer

        outer = sys.exception()
        try:
            return await self._links.lend(node, asked, until)
        except (RedisError, OSError, _Unsent) as error:
            _cut_off(error, outer)
            raise

    async def _opened(self, node: Node, link: Link, until: float) -> None:
        """See that the connection stands, and that the server behind it is fit, as it is or was a moment ago."""
        try:
            made = await link.open(until)
            if not made and time.monotonic() < link.looked + LOOKED_SECONDS:
                return
            info, synced = await link.exchange((("INFO",), ("CONFIG", "GET", *SYNCED)), until)
        except DENIED:
            raise
        except (RedisError, OSError, UnicodeError) as error:
            raise _Unsent from error
        if is_occupied(info):
            raise _Unsent from info
        settings = read_settings(info)
        check_server(settings, cluster=self.cluster)
        self._durable[node] = is_appended(settings) and is_synced(synced)
        link.looked = time.monotonic()


def _cut_off(error: BaseException | None, outer: BaseException | None) -> None:
    """Have an error lead to none that the caller was handling before: it says nothing of why this one came up."""
    while error is not None:
        if error.__context__ is outer:
            error.__context__ = None
        error = error.__cause__ or error.__context__


def _unsent_for(error: BaseException) -> _Unsent:
    unsent = _Unsent()
    unsent.__cause__ = error
    return unsent


def _rather(known: Exception | None, newer: Exception | None) -> Exception | None:
    """Return which failure tells more: the newer, unless there was no time left to find out what it is about."""
    out_of_time = isinstance(newer, _Unsent) and reason_of(newer.__cause__) == TOO_LONG
    return known if newer is None or (known is not None and out_of_time) else newer


def _is_untrusted(failed: Exception | None) -> bool:
    """Return whether a server's certificate was not accepted, which a later attempt finds no other."""
    return isinstance(failed, _Unsent) and reason_of(failed.__cause__) == UNTRUSTED


def _is_demoted(answer: Any) -> bool:
    """Return whether a server refused something, whole, since it only reads."""
    return isinstance(answer, DEMOTED) or (isinstance(answer, list) and answer[1:2] == [b"replica"])


def _told(answer: AskError, asked: Node) -> Node:
    """
    Return where a node sends on; without a host that is its own.

    Raises:
        RedisConnectionError: no node can be there.
    """
    host, _, port = str(answer.args[0]).rpartition(" ")[2].rpartition(":")
    return _place(host, port, asked)


def _place(host: str, port: Any, asked: Node) -> Node:
    try:
        node = Node(asked.host if host in _UNKNOWN else host, int(port))
    except ValueError:
        node = None
    if node is None or not is_place(node):
        raise unreadable()
    return node


def _slot_map(answer: Any, asked: Node) -> tuple[dict[int, Node], tuple[Node, ...]]:
    """
    Return who has which slot, and every node that is named, replicas too.

    Raises:
        RedisConnectionError: it is no such map.
    """
    slots: dict[int, Node] = {}
    named: dict[Node, None] = {}
    try:
        for first, last, *told in answer:
            nodes = [_node_of(each, asked) for each in told]
            slots.update(dict.fromkeys(range(max(first, 0), min(last, _LAST_SLOT) + 1), nodes[0]))
            named.update(dict.fromkeys(nodes))
    except (TypeError, ValueError, LookupError, AttributeError):
        slots = {}
    if not slots and answer:
        raise unreadable()
    return slots, tuple(named)


def _node_of(told: Any, asked: Node) -> Node:
    """
    Return a node as CLUSTER SLOTS tells it.

    One without an endpoint is at the host that was asked; one whose preferred endpoint is a name that it does not have,
    at the address that stands beside it, and without one at that host too.
    """
    host = (told[0] or b"").decode()
    if host == "?":
        beside = dict(zip(told[3][::2], told[3][1::2], strict=True)) if told[3:] else {}
        host = beside.get(b"ip", b"").decode()
    return _place(host, told[1], asked)


def _check_canary(answer: Any, nonce: bytes) -> None:
    """See that an answer is the one to this request: a fault of a driver or a proxy ends here and tells nothing."""
    if not isinstance(answer, list) or not answer or answer[0] != nonce:
        raise RedisConnectionError("a reply that belongs to another request")
