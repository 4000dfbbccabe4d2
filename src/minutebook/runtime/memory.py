"""
Memory resources: business data that capabilities share by name, within the scopes that a program declares (SPEC D28).

A resource is neither a message nor an observation (SPEC D2): the program owns it, and nothing of it reaches a model but
what a capability returns. Each resource is a log of its own in the store, whose newest entry is its value. A write is
one atomic append under an idempotency id that names the version it follows, so of two that follow the same version one
is refused by the store itself: no lock, no reservation, nothing to recover.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from minutebook.errors import DecisionHistoryBusy, DecisionHistoryConflict, InvalidOption, InvalidValue, MemoryRefused
from minutebook.model.bounds import check_count, check_flag, check_listed
from minutebook.model.codec import JSON, decode, encode
from minutebook.model.entries import Draft, Entry, Kind, damaged
from minutebook.model.proof import check_end
from minutebook.model.record import Delta, State
from minutebook.ports import ONE_ENTRY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header
    from minutebook.runtime.checkpoints import Storage

Scope: TypeAlias = Literal["run", "agent", "namespace"]
"""Who shares a resource: the agents of one run, the runs of one agent, or everything in the store's namespace."""

FORMAT = "memory/1"
ATTEMPTS = 64
"""How often a plain write makes way for other writers before it gives up."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class MemoryResource(msgspec.Struct, frozen=True, kw_only=True):
    """
    A resource as a program and its capabilities declare it.

    Every version that was written stays in its log until that is deleted or expires, within the store's own bounds.

    Raises:
        InvalidOption: a name, scope or bound that cannot be.
    """

    name: str
    scope: Scope
    writable: bool = True
    max_bytes: int = 65_536
    """UTF-8 bytes of JSON that one value may have."""

    def __post_init__(self) -> None:
        if type(self.name) is not str or not _NAME.fullmatch(self.name):
            raise InvalidOption("a resource's name is 1 to 64 ASCII letters, digits, '_', '.' or '-'", option="name")
        if self.scope not in get_args(Scope):
            raise InvalidOption("a resource's scope is 'run', 'agent' or 'namespace'", option="scope")
        check_flag(self.writable, "writable")
        check_count(self.max_bytes, "max_bytes")


class MemoryValue(msgspec.Struct, frozen=True):
    """What a resource holds, and which of its versions that is: 0 and `None` before the first write."""

    value: JSON
    version: int

    def __repr__(self) -> str:
        return f"MemoryValue(version={self.version})"


def checked_resources(memory: object) -> tuple[MemoryResource, ...]:
    """
    Return the resources that a program or a capability declares.

    Raises:
        InvalidOption: no list or tuple, something else is in it, or two have one name.
    """
    found: dict[str, MemoryResource] = {}
    for each in check_listed(memory, "memory"):
        if not isinstance(each, MemoryResource):
            raise InvalidOption(f"memory holds a {type(each).__name__}; give MemoryResource values", option="memory")
        if each.name in found:
            raise InvalidOption(f"two memory resources are named {each.name!r}; rename one", option="memory")
        found[each.name] = each
    return tuple(found.values())


@dataclass(frozen=True)
class Resources:
    """The resources that one call may use, and where they are kept."""

    storage: Storage
    declared: Mapping[str, MemoryResource]
    run_id: str
    agent: str

    async def read(self, name: str) -> MemoryValue:
        """See `Memory.read`."""
        return await self._read(self._key(self._declared(name)))

    async def write(self, name: str, value: JSON) -> int:
        """See `Memory.write`."""
        payload, key = self._writable(name, value)
        for _ in range(ATTEMPTS):
            version = await self._version(key)
            if await self._append(key, payload, version):
                return version + 1
        raise DecisionHistoryBusy(
            f"{ATTEMPTS} other writes came first, one after the other; write less often to one resource"
        )

    async def compare_and_set(self, name: str, value: JSON, *, version: int) -> int | None:
        """See `Memory.compare_and_set`."""
        if type(version) is not int or version < 0:
            raise InvalidOption("version is the one that a read gave: an int from 0 on", option="version")
        payload, key = self._writable(name, value)
        if await self._version(key) != version:
            return None
        return version + 1 if await self._append(key, payload, version) else None

    def _declared(self, name: str) -> MemoryResource:
        found = self.declared.get(name) if type(name) is str else None
        if found is None:
            raise MemoryRefused(
                "the capability declares no memory resource of this name; add it to memory= there and on the program",
                problem="undeclared",
            )
        return found

    def _writable(self, name: str, value: JSON) -> tuple[bytes, ConversationKey]:
        resource = self._declared(name)
        if not resource.writable:
            raise MemoryRefused(f"the memory resource {resource.name!r} is declared read-only", problem="read_only")
        payload = encode(value)
        if len(payload) > resource.max_bytes:
            raise MemoryRefused(
                f"a value of {len(payload):,} bytes for the memory resource {resource.name!r}, limit "
                f"{resource.max_bytes:,}; raise max_bytes or store less",
                problem="too_large",
                size=len(payload),
                limit=resource.max_bytes,
            )
        return payload, self._key(resource)

    def _key(self, resource: MemoryResource) -> ConversationKey:
        owner = {"run": (self.run_id,), "agent": (self.agent,), "namespace": ()}[resource.scope]
        return self.storage.key("memory", resource.scope, *owner, resource.name)

    async def _version(self, key: ConversationKey) -> int:
        header = await self._header(key)
        return 0 if header is None else header.entries

    async def _header(self, key: ConversationKey) -> Header | None:
        """Return the counters of a resource's log, of which nothing but values was ever written."""
        header = await self.storage.journal.header(key)
        if header is None:
            return None
        if (header.format, header.state, header.attempt) != (FORMAT, State(said=header.entries), None):
            raise damaged(header.entries, "is not the newest value by the header")
        return header

    async def _read(self, key: ConversationKey) -> MemoryValue:
        header = await self._header(key)
        newest = await self.storage.journal.newest(key, header.entries + 1, ONE_ENTRY) if header else ()
        if header is None or not newest:
            return MemoryValue(None, 0)
        entry = newest[0]
        # The version before proves this one: what was altered where it is stored is no value of the program's.
        before = await self.storage.journal.newest(key, entry.seq, ONE_ENTRY) if entry.seq > 1 else ()
        check_end(key, header, (*before, entry))
        return MemoryValue(_held(entry), entry.seq)

    async def _append(self, key: ConversationKey, payload: bytes, version: int) -> bool:
        """Return whether the value became the version after `version`; another writer was first otherwise."""
        # Two writers of one value differ by the id beside it, or the second would pass for a repetition of the first.
        content = b'[%b,"%b"]' % (payload, self.storage.fresh_id().encode())
        delta = Delta(drafts=(Draft(kind=Kind.INJECTION, payload=content),), idempotency=f"version-{version + 1}")
        try:
            await self.storage.journal.reserve(
                key, self.storage.tokens.issue(self), format=FORMAT, opening=delta, release=True
            )
        except DecisionHistoryConflict:
            return False
        return True


def _held(entry: Entry) -> JSON:
    """Return the value that an entry holds beside its writer's id."""
    try:
        held = decode(entry.payload)
    except InvalidValue:
        held = None
    if not isinstance(held, list) or len(held) != 2:
        raise damaged(entry.seq, "is no value of a memory resource")
    return held[0]


class MemoryAccess:
    """What a capability is given for its resources. The runtime makes it; a model neither sees nor names it."""

    @classmethod
    def over(cls, resources: Resources) -> Self:
        """Return this over the resources of one call."""
        access = cls()
        access._resources = resources
        return access

    _resources: Resources


class Memory(MemoryAccess):
    """
    The memory resources of one call, for an `async def` capability; `minutebook.sync.Memory` is for a plain function.

    Only resources that the capability and its program declare are reached; another name is refused before anything is
    read or written.
    """

    async def read(self, name: str) -> MemoryValue:
        """
        Return a resource's value and version.

        Raises:
            MemoryRefused: `undeclared`.
        """
        return await self._resources.read(name)

    async def write(self, name: str, value: JSON) -> int:
        """
        Replace a resource's value, whatever it is, and return the new version; durable when this returns.

        Raises:
            MemoryRefused: `undeclared`, `read_only` or `too_large`.
            InvalidValue: JSON cannot hold the value exactly.
            DecisionHistoryStoreFull, DecisionHistoryRetentionExceeded: there is no room; the value stays as it was.
        """
        return await self._resources.write(name, value)

    async def compare_and_set(self, name: str, value: JSON, *, version: int) -> int | None:
        """
        Replace a resource's value if its version is still `version`; 0 is that of one that was never written.

        Returns the new version, or `None` if another one stands there: nothing was changed, read again. A resource that
        was deleted or has expired begins at version 0 again. Raises what `write` does.
        """
        return await self._resources.compare_and_set(name, value, version=version)
