"""
Every error that minutebook raises, in one tree, split by who has to act.

    MinutebookError
    ├── CallerError                              the call was wrong; nothing was read or written
    │   ├── InvalidOption                        an option or limit (also a ValueError)
    │   ├── InvalidId                            a namespace, conversation id or idempotency id (also a ValueError)
    │   ├── InvalidValue                         a value or text that JSON cannot hold exactly; `path` names the place
    │   ├── InvalidMessage                       JSON, but no message of the conversation's wire format
    │   ├── PairingViolation                     a result without its call, or a call left open
    │   ├── StoreClosed                          the store was closed, or is used after a fork
    │   ├── StoreReentered                       a store called in the middle of another call of the same thread
    │   └── BlockingMismatch                     an async store driven by blocking code, or the other way round
    ├── DecisionHistoryError                     the history refuses; the record is as it was
    │   ├── DecisionHistoryBusy                  another worker holds the conversation
    │   ├── DecisionHistoryFenced                this worker lost the conversation to `recover` or `delete`
    │   ├── DecisionHistoryNotReserved           nothing to recover or to release
    │   ├── DecisionHistoryConflict              the same id with other content, or a transcript that contradicts
    │   ├── DecisionHistoryLimitExceeded         what must be sent does not fit the window
    │   ├── DecisionHistoryRetentionExceeded     one conversation would retain more than its bound
    │   ├── DecisionHistoryStoreFull             the store would hold more than its bounds
    │   ├── DecisionHistorySummaryInvalid        the host's summary is none, or its callback failed
    │   ├── HistoryMessageTooLong                an assistant message alone exceeds an engine's `max_chars`
    │   └── DecisionHistoryAbsent                no such conversation, or it has expired
    ├── RuntimeRefusal                           the runtime refuses; nothing was executed
    │   ├── AgentBudgetExhausted                 a chat used up its budget before the model answered
    │   ├── ApprovalRefused                      an approval that is not for this call, has expired or was used
    │   ├── CheckpointRefused                    no checkpoint to go on from, or one that must be gone on with first
    │   └── MemoryRefused                        an undeclared memory resource, a read-only one, or a value too large
    ├── StorageError                             files, disks and databases; an operator has to look
    │   ├── DecisionHistoryStorageUnsafe         files that are not private, or a server that may lose or evict
    │   ├── DecisionHistoryStorageFailed         the disk or the database failed; the outcome is unknown
    │   ├── DecisionHistoryStorageLocked         another program kept the database locked for too long
    │   ├── DecisionHistoryCorrupt               stored bytes are not what was written; `seq` names the entry
    │   ├── DecisionHistoryRegressed             the database has lost what it acknowledged before
    │   ├── DecisionHistorySchemaUnsupported     the database is of another version or another application
    │   └── ImportRefused                        an import file is torn, foreign or too large
    └── ProviderError                            the model's side, or the request made for it
        ├── AgentDecisionProviderUnavailable     transport or provider failure
        ├── AgentDecisionProviderSchemaViolation a response without a valid typed decision
        ├── ProviderContextCountUnavailable      no count could be had, so nothing was generated
        └── ProviderContextWindowExceeded        what must be sent was counted and does not fit the model's window

Each class has a stable `code`, which is its name: the published names are what people search for. Messages hold
numbers, options and what to do; never message content, keys or passwords (promise I-37).
"""

from __future__ import annotations

from typing import Any

from minutebook.lasting import passes

__all__ = [
    "AgentBudgetExhausted",
    "AgentDecisionProviderSchemaViolation",
    "AgentDecisionProviderUnavailable",
    "ApprovalRefused",
    "BlockingMismatch",
    "CallerError",
    "CheckpointRefused",
    "DecisionHistoryAbsent",
    "DecisionHistoryBusy",
    "DecisionHistoryConflict",
    "DecisionHistoryCorrupt",
    "DecisionHistoryError",
    "DecisionHistoryFenced",
    "DecisionHistoryLimitExceeded",
    "DecisionHistoryNotReserved",
    "DecisionHistoryRegressed",
    "DecisionHistoryRetentionExceeded",
    "DecisionHistorySchemaUnsupported",
    "DecisionHistoryStorageFailed",
    "DecisionHistoryStorageLocked",
    "DecisionHistoryStorageUnsafe",
    "DecisionHistoryStoreFull",
    "DecisionHistorySummaryInvalid",
    "HistoryMessageTooLong",
    "ImportRefused",
    "InvalidId",
    "InvalidMessage",
    "InvalidOption",
    "InvalidValue",
    "MemoryRefused",
    "MinutebookError",
    "PairingViolation",
    "ProviderContextCountUnavailable",
    "ProviderContextWindowExceeded",
    "ProviderError",
    "RuntimeRefusal",
    "StorageError",
    "StoreClosed",
    "StoreReentered",
]


class MinutebookError(Exception):
    """
    Base of every error of this package.

    What a class says of its attributes is there on each of its errors, as `None` where it is not known or does not
    apply; `facts` holds those that are.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        """Keep `facts` (numbers, option names, positions) as attributes beside the message."""
        super().__init__(message)
        self.facts = facts
        self.__dict__.update(facts)

    @property
    def code(self) -> str:
        """The stable name that logs, traces and exit codes use."""
        return type(self).__name__


def raised_at(error: BaseException) -> str:
    """Return the type of a host's exception and the line it came from, but not its words: they may quote content."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    file = trace.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{type(error).__name__} at {file}, line {trace.tb_lineno}"


class CallerError(MinutebookError):
    """The call itself was wrong; nothing was read or written."""


class InvalidOption(CallerError, ValueError):
    """An option or limit out of its range, unknown, or in conflict with another."""

    option: str | None = None
    package: str | None = None


class InvalidId(CallerError, ValueError):
    """A namespace, conversation id or idempotency id that no store accepts."""


class InvalidValue(CallerError, ValueError):
    """
    A value that JSON cannot hold exactly. `path` is where it stands, for example `$.content[2].text`; `field` names the
    field of a message that it is of.
    """

    path: str | None = None
    field: str | None = None


class InvalidMessage(CallerError, ValueError):
    """
    Valid JSON that is no message of the conversation's wire format. `path` is where it stands, and begins the text
    where that is not the whole: of a long list a log shows which message is meant.
    """

    path: str | None = None
    field: str | None = None
    index: int | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        """Keep `facts`, and tell the place unless `message` does."""
        path = facts.get("path") or "$"
        super().__init__(message if path == "$" or path in message else f"{path}: {message}", **facts)


class PairingViolation(CallerError):
    """A result without an open call of its own exchange, or an exchange left with an open call."""

    exchange: int | None = None
    call: int | None = None
    waiting: tuple[int | str, ...] | None = None
    index: int | None = None


class StoreClosed(CallerError):
    """The store was closed, or was opened in another process before a fork."""


class StoreReentered(CallerError):
    """A signal handler or a finalizer called a store that its thread was just calling; nothing was done."""


class BlockingMismatch(CallerError):
    """A coroutine suspended under `minutebook.sync`: the store or client given there is an asynchronous one."""


class DecisionHistoryError(MinutebookError):
    """A refusal of the history itself. The record is as it was, and no request was sent."""


class DecisionHistoryBusy(DecisionHistoryError):
    """Another worker holds the conversation (SPEC D22). `epoch` and `since_ms` say which reservation and how old."""

    epoch: int | None = None
    since_ms: int | None = None


class DecisionHistoryFenced(DecisionHistoryError):
    """This worker's reservation was ended by `recover` or `delete`; its write changed nothing (SPEC D22)."""

    epoch: int | None = None


class DecisionHistoryNotReserved(DecisionHistoryError):
    """There is no reservation to recover, or another recovery was first (SPEC D22)."""

    epoch: int | None = None


class DecisionHistoryConflict(DecisionHistoryError):
    """The same id came with other content, or a transcript contradicts what is recorded (SPEC C4)."""

    problem: str | None = None
    seq: int | None = None
    first: int | None = None
    last: int | None = None
    entries: int | None = None


class DecisionHistoryLimitExceeded(DecisionHistoryError):
    """What must stay in the window exceeds a limit; nothing was sent (SPEC D8)."""

    bytes: int | None = None
    messages: int | None = None
    max_bytes: int | None = None
    max_messages: int | None = None
    summary_bytes: int | None = None
    mandatory: int | None = None
    outgrown: tuple[int, int] | None = None
    """Messages and bytes of the open tool loop for which there was no room: the next turn begins with more."""


class DecisionHistoryRetentionExceeded(DecisionHistoryError):
    """The conversation would retain more than `max_retained_bytes` (SPEC D7)."""

    size: int | None = None
    limit: int | None = None


class DecisionHistoryStoreFull(DecisionHistoryError):
    """The store would exceed `max_sessions` or `max_bytes`; nothing older was evicted (SPEC D7)."""

    sessions: int | None = None
    bytes: int | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None


class DecisionHistorySummaryInvalid(DecisionHistoryError):
    """The `summarize` callback raised, or gave no text that fits (SPEC D18). `problem` is an enumerated reason."""

    problem: str | None = None
    size: int | None = None
    limit: int | None = None


class HistoryMessageTooLong(DecisionHistoryError):
    """An engine's message has more characters than `max_chars`: `chars` and `limit` say how many (SPEC E5)."""

    chars: int | None = None
    limit: int | None = None


class DecisionHistoryAbsent(DecisionHistoryError):
    """The conversation does not exist or has expired; with `cut`, what was asked for left its record meanwhile."""

    seq: int | None = None
    cut: int | None = None


class RuntimeRefusal(MinutebookError):
    """
    A refusal of the runtime. `problem` is an enumerated reason; nothing was executed or changed (SPEC D28), but for
    what the tools of a chat did before its budget ended.
    """

    problem: str | None = None


class AgentBudgetExhausted(RuntimeRefusal):
    """
    A chat used up its budget (`budget`: `decisions`, `calls` or `wall`) before the model answered; the turn left the
    history. What its tools did is done, and stands in the record under the turn's mark.
    """

    budget: str | None = None


class ApprovalRefused(RuntimeRefusal):
    """An approval that authorizes nothing: `unknown`, `altered`, `changed`, `expired`, `used` or `repeated`."""


class CheckpointRefused(RuntimeRefusal):
    """
    A run that cannot begin or go on: its checkpoint is `absent`, `unfinished`, or of another `projection`; or its last
    decision stands in another `conversation` than the provider's, or in another record of it; or its next `decision` is
    recorded and does not fit the program any more; or its task has ended and is `repeated` with another text or other
    observations.
    """


class MemoryRefused(RuntimeRefusal):
    """A memory resource that is `undeclared` or `read_only`, or a value that is `too_large` for it."""

    size: int | None = None
    limit: int | None = None


class StorageError(MinutebookError):
    """Files, disks and databases: an operator has to look."""


class DecisionHistoryStorageUnsafe(StorageError):
    """
    A file or directory that others could read, replace or write (SPEC D20), or a server that only reads, evicts, or may
    lose what it acknowledged (SPEC B2); nothing was written. `problem` is an enumerated reason.
    """

    problem: str | None = None
    path: str | None = None


class DecisionHistoryStorageFailed(StorageError):
    """
    The disk or database failed. Whether a write that failed so is durable is unknown until the store is opened again.

    After a failed sync the kernel may have dropped the dirty pages, so a second attempt that succeeds proves
    nothing: the store refuses everything until it is reopened (promise I-6). On a server only the call that failed is
    in doubt: the next one has another connection, and the same id writes once.
    """

    problem: str | None = None
    path: str | None = None
    sqlite: str | None = None
    sqlstate: str | None = None
    reason: str | None = None
    """Why no connection to a server could be made, in words for people."""
    sent: bool | None = None
    """`False` where no connection could be made, so that nothing was sent, and nothing can have been written."""


class DecisionHistoryStorageLocked(StorageError):
    """
    Another program kept the database locked longer than the store waits, or every connection to a server was in use as
    long; nothing was written.

    `owed` says how many of a store's connections to a server were given up by their calls and are still at work.
    """

    seconds: float | None = None
    sqlstate: str | None = None
    owed: int | None = None


class DecisionHistoryCorrupt(StorageError):
    """
    Stored bytes are not what was written. `seq` names the first entry that fails, where it is known.

    A listing that meets a damaged conversation names it by `id`, with how many sound ones, `good_records`, come before.
    """

    seq: int | None = None
    id: str | None = None
    good_records: int | None = None
    version: int | None = None
    sqlite: str | None = None
    sqlstate: str | None = None


class DecisionHistoryRegressed(StorageError):
    """
    The database has an older version of a conversation, or another one, than it acknowledged before (promise I-15).

    A backup was restored, or a standby took over that had not received everything. `version` is what it has now, and
    `seen` what it had; nothing was written.
    """

    version: int | None = None
    seen: int | None = None


class DecisionHistorySchemaUnsupported(StorageError):
    """The database belongs to another application or to another version of the schema; it was left unchanged."""

    found: int | None = None
    supported: int | None = None
    sqlstate: str | None = None


class ImportRefused(StorageError):
    """An import file is torn, foreign, or over a bound. `good_records` and `line` say how far it was sound."""

    problem: str | None = None
    good_records: int | None = None
    line: int | None = None


class ProviderError(MinutebookError):
    """The model's side. `provider_error_code` is this library's own diagnosis (SPEC D9)."""

    provider_error_code: str | None = None
    status: int | None = None
    cause: str | None = None


class AgentDecisionProviderUnavailable(ProviderError):
    """
    Transport or provider failure: time-outs, refused redirects, every status but 2xx (SPEC D9).

    Where a connection failed (`connection_failed`), `cause` is the name of the type of the exception that told so.
    """

    bytes: int | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later. `status` alone does not say so: a stream fails under 200."""
        return passes(self.provider_error_code, self.status)


class AgentDecisionProviderSchemaViolation(ProviderError):
    """The provider answered, but not with a valid typed decision (SPEC D9)."""


class ProviderContextCountUnavailable(ProviderError):
    """No token count could be had; nothing was generated (SPEC D12)."""

    field: str | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may be counted later; not where the message names what to leave out of it."""
        return passes(self.provider_error_code, self.status)


class ProviderContextWindowExceeded(ProviderError):
    """
    The least that can be sent was counted and does not fit the window; nothing was generated (SPEC D12).

    `count`, `reservation` and `window` are in tokens.
    """

    count: int | None = None
    reservation: int | None = None
    window: int | None = None
