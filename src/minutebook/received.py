"""
Where a decision stands, and whether what a runtime received last is in a record.

A conversation is told from all others by a name: its key's, for as long as anything has that key, and its own birth. A
place in it is told by the chain digest of what stands there, which holds for all before it too. A copy has another
birth and the same digests, up to where the two went ways of their own (SPEC D25).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from minutebook.errors import CheckpointRefused
from minutebook.model.decisions import CallReference
from minutebook.model.entries import first_digest

if TYPE_CHECKING:
    from minutebook.history import History
    from minutebook.model.decisions import Abandoned, Decision, DecisionRequest, Resumed
    from minutebook.model.entries import Entry
    from minutebook.model.keys import ConversationKey
    from minutebook.model.record import Header


async def check_same(history: History, header: Header, request: DecisionRequest) -> None:
    """
    Refuse to go on with a task in a conversation that has not what was decided of it since, in another one.

    What waits there was answered elsewhere perhaps, and its numbers name other calls than the runtime knows by them.

    Raises:
        CheckpointRefused: it is the conversation of another key, or a record without the task's last decision.
    """
    resumed = request.resumed
    if resumed is None or resumed.conversation == "":
        return
    if not _is_of(history.key, resumed):
        raise CheckpointRefused(
            "the task's last decision stands in the conversation of another model, interface or provider, and this one "
            "has nothing of it: go on with that model and interface, or give the task up by `abandon`",
            problem="conversation",
        )
    if not await holds(history, header, resumed):
        raise CheckpointRefused(
            "the task's last decision is not in this record of its conversation, which is of another store or was put "
            "back since: go on with the store that has it, or give the task up by `abandon`",
            problem="conversation",
        )


def _is_of(key: ConversationKey, last: Resumed | Abandoned) -> bool:
    """Return whether the last decision that a runtime received stands under a key, here or in another store."""
    return last.conversation is not None and last.conversation.startswith(_place(key))


async def holds(history: History, header: Header, last: Resumed | Abandoned) -> bool:
    """Return whether the last decision that a runtime received is recorded here, or in what this is a copy of."""
    seen = last.seen or 0
    if not _is_of(history.key, last) or not header.cut.seq < seen <= header.entries:
        return False
    return _told_digest(await history.entry(seen)) == last.digest


def _place(key: ConversationKey) -> str:
    """Return how the names of all conversations begin that have a key, copies in other stores among them."""
    return first_digest(key)[:4].hex()


def name_of(key: ConversationKey, header: Header) -> str:
    """Return what names a conversation apart from all others, those that had its key or will have it among them."""
    return f"{_place(key)}{header.birth.hex()}"


def _told_digest(entry: Entry) -> str:
    """Return as much of an entry's digest as tells records apart that were meant to be one."""
    return entry.digest[:8].hex()


def referenced(decision: Decision, key: ConversationKey, header: Header, response: Entry) -> Decision:
    """Return a decision that says where it stands: in the conversation, as `response`."""
    calls = tuple(
        msgspec.structs.replace(call, reference=CallReference(response.seq, position))
        for position, call in enumerate(decision.calls)
    )
    return msgspec.structs.replace(
        decision, calls=calls, exchange=response.seq, conversation=name_of(key, header), digest=_told_digest(response)
    )
