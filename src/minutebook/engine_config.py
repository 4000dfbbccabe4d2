"""
What an engine keeps, as a value that is checked where it is made: the policy of its sessions.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.colours import check_store_colour
from minutebook.model.shown import type_alone
from minutebook.model.turns import Derive, Meta, Transform, Written
from minutebook.stores.journal import JournalStore


class HistoryConfig(msgspec.Struct, Generic[Meta], frozen=True, kw_only=True):
    """
    What an engine keeps, how much of it, and what a model sees of it; generic in the metadata of entries (SPEC E1).

    Raises:
        InvalidOption: no store or none with a namespace, a bound that is no integer, a function that cannot be called.
    """

    store: JournalStore
    """Where sessions are kept; required, so that nobody loses them by a default (SPEC E2)."""
    max_entries: int | None = None
    """The most entries of a session; `None` is no bound (SPEC E6)."""
    max_chars: int | None = None
    """The most characters (Unicode code points) that the projections of a session's entries have together (SPEC E5)."""
    transform_entry: Transform[Meta] | None = None
    """Given every entry before it is recorded, to strip fields or add metadata; returns what is recorded (SPEC E7)."""
    derive_llm_context: Derive[Meta] | None = None
    """
    Given an entry and `defaults`, which returns its default projection; returns the messages that a model sees of it:
    none, one or many (SPEC E4). It is called once for each entry of a context, and at most once to cost one, where
    `max_chars` counts; keep it cheap and free of side effects.
    """
    keep_truncated: bool = False
    """Keep what the bounds drop in the record, out of the context; else it leaves the record for good (SPEC E6)."""
    metadata: type[Meta] | None = None
    """The type that stored metadata is read as; without it metadata is plain JSON, as it was given."""

    __repr__ = type_alone

    def __post_init__(self) -> None:
        _ = self.core_store().namespace  # refused where there is none (SPEC D21)
        Written(self.metadata)
        for name in ("max_entries", "max_chars"):
            if type(getattr(self, name)) not in (int, type(None)):
                raise InvalidOption(f"{name} is an int, or None for no bound", option=name)
        for name in ("transform_entry", "derive_llm_context"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise InvalidOption(f"{name} is a function", option=name)
        if type(self.keep_truncated) is not bool:
            raise InvalidOption("keep_truncated is True or False", option="keep_truncated")

    def core_store(self) -> JournalStore:
        """
        Return the store as coroutines use it.

        Raises:
            InvalidOption: it is no store.
            BlockingMismatch: it is one of the other colour.
        """
        if isinstance(self.store, JournalStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            return self.store
        check_store_colour(self.store, "store", blocking=False)
        raise InvalidOption(
            f"store is a store of minutebook, not {type(self.store).__name__}; for local work give "
            "create_in_memory_store()",
            option="store",
        )
