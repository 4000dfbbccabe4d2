"""
Summaries in place of what leaves the window (SPEC D17, D18): what the host's callback is given, and what it gave.

The callback sees only what left since the summary before, as copies. Whatever it does, nothing has been recorded yet:
a summary goes into the record with the answer to the request that it stood in.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, cast

import msgspec

from minutebook.errors import DecisionHistorySummaryInvalid, InvalidOption, MinutebookError, raised_at
from minutebook.model.bounds import check_count
from minutebook.model.codec import JSON, encode, reread
from minutebook.model.colours import refuse_loopless
from minutebook.model.shown import type_alone
from minutebook.model.summaries import (
    LARGEST_SUMMARY_BYTES,
    Covered,
    Summary,
    checked_summary,
    covering,
    drawn_fence,
    fenced,
)
from minutebook.policy.projection import unit_fragments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from minutebook.model.units import Inputs, Unit
    from minutebook.ports import Summarize, Wire

PART_BYTES = 96
"""What stands around a summary's text where it becomes a part of the first message, at most."""


class Removed(msgspec.Struct, frozen=True):
    """Exchanges that no window shows any more and no summary covers yet, oldest first, and their turns' inputs."""

    units: list[Unit]
    inputs: Inputs

    __repr__ = type_alone


class Summarising(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes summaries, how long they may be, and where fences come from that nobody can guess."""

    summarize: Summarize
    max_bytes: int
    fence: Callable[[], str]

    def stand_in(self) -> Summary:
        """Return a summary of full length, to plan the cut with before there is one: digits, which count high."""
        digits = "".join(hashlib.sha256(b"%d" % block).hexdigest() for block in range(self.max_bytes // 64 + 1))
        return fenced(digits[: self.max_bytes], Covered(exchanges=10**6), "0" * 32)

    async def make(self, before: Summary | None, removed: Removed, wire: Wire) -> Summary:
        """
        Return the summary of all that `before` covers and of what was removed since.

        Raises:
            DecisionHistorySummaryInvalid: the callback raised, or gave no summary.
            BlockingMismatch: it waits for an event loop, and none runs.
        """
        covered = covering(before.covered if before else Covered(), removed.units, removed.inputs)
        text = await self._asked(before.text if before else None, _turns(removed, wire))
        return fenced(checked_summary(text, self.max_bytes), covered, self.fence())

    async def _asked(self, previous: str | None, turns: list[list[dict[str, JSON]]]) -> object:
        try:
            given = self.summarize(previous_summary=previous, turns=turns, max_bytes=self.max_bytes)
            return await given if inspect.isawaitable(given) else given
        except MinutebookError:
            raise
        except Exception as error:
            refuse_loopless(error)
            failed = raised_at(error)
        # Without its cause: what a callback raises may quote the conversation (promise I-37).
        raise DecisionHistorySummaryInvalid(f"summarize raised {failed}; nothing was changed", problem="raised")


def summarising(
    summarize: object, max_summary_bytes: object, max_bytes: int, fresh_id: Callable[[], str]
) -> Summarising | None:
    """
    Return who makes summaries, by the options of a face; `None` without a callback.

    Raises:
        InvalidOption: no function, one that does not take the three keywords, or a summary that could fill more than
            half of the window.
    """
    if summarize is None:
        return None
    if not callable(summarize):
        raise InvalidOption("summarize is a function, or a coroutine function", option="summarize")
    _check_takes_keywords(summarize)
    size = check_count(max_summary_bytes, "max_summary_bytes")
    if size > LARGEST_SUMMARY_BYTES:
        raise InvalidOption(
            f"max_summary_bytes is at most {LARGEST_SUMMARY_BYTES:,}, not {size:,}", option="max_summary_bytes"
        )
    if size > most_of_window(max_bytes):
        raise InvalidOption(
            f"a summary of {size:,} bytes may fill more than half of the window, max_bytes {max_bytes:,}; lower "
            "max_summary_bytes, or raise max_bytes",
            option="max_summary_bytes",
        )
    return Summarising(
        summarize=cast("Summarize", summarize),
        max_bytes=size,
        fence=lambda: drawn_fence(fresh_id()),
    )


def most_of_window(max_bytes: int) -> int:
    """Return how many bytes of a window a summary may fill: half of it, so that what it stands before has room."""
    return max_bytes // 2


def _check_takes_keywords(summarize: Callable[..., object]) -> None:
    """Refuse what the first summary would fail at, long after it was given; one that tells nothing of itself may do."""
    try:
        signature = inspect.signature(summarize)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(previous_summary=None, turns=[], max_bytes=0)
    except TypeError:
        raise InvalidOption(
            "summarize is called with the keywords previous_summary, turns and max_bytes and no others; write "
            "def summarize(*, previous_summary, turns, max_bytes)",
            option="summarize",
        ) from None


def summary_size(summary: Summary) -> int:
    """Return what a summary adds to a window in bytes, at most."""
    return len(encode(summary.told)) + PART_BYTES


def _turns(removed: Removed, wire: Wire) -> list[list[dict[str, JSON]]]:
    """Return each removed exchange as wire messages, the first of a turn behind the input that it answers."""
    turns: list[list[dict[str, JSON]]] = []
    turn = 0
    for unit in removed.units:
        fragments: list[bytes] = []
        if unit.turn != turn:
            turn = unit.turn
            fragments += [entry.fragment for entry in reversed(removed.inputs.get(turn, ()))]
        fragments += unit_fragments(unit, wire)
        array = b"[%b]" % b",".join(filter(None, fragments))
        turns.append(cast("list[dict[str, JSON]]", reread(array)))
    return turns


def newly_removed(removed: Removed, start: int, covered: Sequence[int]) -> Removed:
    """Return of what no earlier summary covers the part that is older than the window's `start` and not `covered`."""
    done = set(covered)
    return Removed([unit for unit in removed.units if unit.key < start and unit.key not in done], removed.inputs)
