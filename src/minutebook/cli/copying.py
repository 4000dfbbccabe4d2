"""`minutebook copy`: the conversations of a namespace in another store, each whole and proved, or named and left."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from minutebook.cli.running import AsJson, FromUrl, Namespace, ToUrl, with_stores
from minutebook.cli.streams import telling
from minutebook.cli.terminal import exit_code, print_json, say, shown, told
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryRetentionExceeded,
    MinutebookError,
)
from minutebook.stores.streams import stream_listings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from minutebook.model.keys import ConversationKey
    from minutebook.model.transfer import Copied
    from minutebook.stores.journal import JournalStore

_LEFT = (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryRetentionExceeded,
)
"""What is wrong with one conversation: the others are copied all the same. Anything else ends the command."""


def copy(
    source: FromUrl,
    target: ToUrl,
    namespace: Namespace,
    conversation: Annotated[
        list[str] | None, typer.Option("--conversation", metavar="ID", help="Only this one; may be given again.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the database TO if it is not there.")] = False,
    json: AsJson = False,
) -> None:
    """
    Copy a namespace's conversations to another store.

    Each goes over whole, with its receipts, in one commit, and is proved there by its digest chain. What is there
    already is only proved, so the same command goes on with a copy that was stopped. A conversation that is reserved
    is left out, and so is one of which TO holds something else; the exit code says so.
    """

    async def work(here: JournalStore, there: JournalStore) -> None:
        keys = [here.key(id_) for id_ in conversation or ()]
        account, bar = _Account(as_json=json), _Bar(as_json=json)
        try:
            with bar.progress:
                await _copy_all(here, there, keys, account, bar)
        finally:
            account.close()
        if not account.seen:
            raise DecisionHistoryAbsent("no conversation in this namespace, so nothing was copied; see --namespace")
        if account.code:
            raise SystemExit(account.code)

    with_stores(source, target, namespace, work, as_json=json, create=create)


async def _copy_all(
    here: JournalStore, there: JournalStore, keys: list[ConversationKey], account: _Account, bar: _Bar
) -> None:
    if bar.is_shown:
        bar.begin(len(keys) or (await here.totals()).conversations)
    async for id_, damage in _chosen(here, keys):
        key = here.key(id_)
        try:
            if damage is not None:
                raise damage
            account.copied(key, await here.copy(key, there, progress=bar.entries))
        except _LEFT as error:
            with bar.aside():
                account.left(key, error)
        bar.next()


async def _chosen(
    store: JournalStore, keys: list[ConversationKey]
) -> AsyncIterator[tuple[str, DecisionHistoryCorrupt | None]]:
    """Yield the ids of the given keys, or else every id of the namespace, with what is wrong with its header."""
    for key in keys:
        yield key.id, None
    if not keys:
        async for listing in stream_listings(store.journal, store.namespace):
            if isinstance(listing, DecisionHistoryCorrupt):
                yield str(listing.id), listing
            else:
                yield listing.key.id, None


class _Account:
    """What became of the conversations so far."""

    def __init__(self, *, as_json: bool) -> None:
        self.code = 0
        self._as_json = as_json
        self._written = self._equal = self._left = self._entries = 0

    @property
    def seen(self) -> int:
        return self._written + self._equal + self._left

    def copied(self, key: ConversationKey, copied: Copied) -> None:
        header = copied.header
        self._written += copied.written
        self._equal += not copied.written
        self._entries += header.retained if copied.written else 0
        if self._as_json:
            outcome = "copied" if copied.written else "equal"
            values: dict[str, Any] = {"entries": header.retained, "bytes": header.bytes, "digest": header.digest.hex()}
            print_json({"id": key.id, "outcome": outcome, **values})

    def left(self, key: ConversationKey, error: MinutebookError) -> None:
        self._left += 1
        self.code = max(self.code, exit_code(error))
        if self._as_json:
            print_json({"id": key.id, "outcome": "left", "error": error.code, "message": told(error)})
        else:
            say(f"{shown(key.id)}: left, {error.code}: {shown(told(error))}")

    def close(self) -> None:
        if not self._as_json and self.seen:
            told = (
                f"copied {self._written:,} conversations with {self._entries:,} entries; {self._equal:,} were there "
                f"already; {self._left:,} were left"
            )
            with telling(told):
                say(told)


class _Bar:
    """How far the copy is, on a terminal's standard error: conversations, and the entries of the one under way."""

    def __init__(self, *, as_json: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.is_shown = sys.stderr.isatty() and not as_json
        self.progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # what is told goes where standard output goes, beside the bar
            disable=not self.is_shown,
        )
        self._all = self.progress.add_task("copying", total=None)
        self._one = self.progress.add_task("entries", total=None)

    def begin(self, conversations: int) -> None:
        self.progress.update(self._all, total=conversations)

    def entries(self, done: int, total: int) -> None:
        self.progress.update(self._one, completed=done, total=total)

    def next(self) -> None:
        self.progress.advance(self._all)

    @contextlib.contextmanager
    def aside(self) -> Generator[None]:
        """Take the bar away while a line is written."""
        self.progress.stop()
        try:
            yield
        finally:
            self.progress.start()
