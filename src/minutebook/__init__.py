"""
minutebook keeps the conversation history of LLM agents: every exchange is kept, only what fits is sent.

Names are loaded when they are first used, so that importing the package loads no driver, SDK or framework. For
blocking callers `minutebook.sync` has the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minutebook._version import __version__

if TYPE_CHECKING:
    from minutebook.agent import Agent
    from minutebook.conversation import Conversation
    from minutebook.decisions import (
        AnthropicDecisionProvider,
        GeminiDecisionProvider,
        HistoryOptions,
        OpenAIChatDecisionProvider,
        OpenAIDecisionProvider,
    )
    from minutebook.errors import (
        AgentBudgetExhausted,
        AgentDecisionProviderSchemaViolation,
        AgentDecisionProviderUnavailable,
        ApprovalRefused,
        BlockingMismatch,
        CallerError,
        CheckpointRefused,
        DecisionHistoryAbsent,
        DecisionHistoryBusy,
        DecisionHistoryConflict,
        DecisionHistoryCorrupt,
        DecisionHistoryError,
        DecisionHistoryFenced,
        DecisionHistoryLimitExceeded,
        DecisionHistoryNotReserved,
        DecisionHistoryRetentionExceeded,
        DecisionHistorySchemaUnsupported,
        DecisionHistoryStorageFailed,
        DecisionHistoryStorageLocked,
        DecisionHistoryStorageUnsafe,
        DecisionHistoryStoreFull,
        DecisionHistorySummaryInvalid,
        ImportRefused,
        InvalidId,
        InvalidMessage,
        InvalidOption,
        InvalidValue,
        MemoryRefused,
        MinutebookError,
        PairingViolation,
        ProviderContextCountUnavailable,
        ProviderContextWindowExceeded,
        ProviderError,
        RuntimeRefusal,
        StorageError,
        StoreClosed,
    )
    from minutebook.model.bounds import WindowLimits
    from minutebook.model.chat_events import (
        AgentEvent,
        HistoryCleared,
        HistoryShortened,
        HistorySummarized,
        MessageAdded,
        SummarizationFailed,
    )
    from minutebook.model.context import ContextWindow
    from minutebook.model.decisions import (
        Abandoned,
        CallReference,
        Decision,
        DecisionRequest,
        Finish,
        Observation,
        ProposedCall,
        Resumed,
    )
    from minutebook.model.entries import Entry
    from minutebook.model.events import (
        Event,
        HistoryAbandoned,
        HistoryResumed,
        HistorySummary,
        HistoryTrimmed,
        ProviderContextCount,
        ReasoningWithheld,
    )
    from minutebook.model.keys import ConversationKey
    from minutebook.model.receipts import Sent
    from minutebook.model.record import Header, Receipt, Record
    from minutebook.model.transfer import Imported
    from minutebook.ports import DecisionProvider, Listing, Observer, Summarize, Totals
    from minutebook.programs import Runtime
    from minutebook.providers.guard import ContextGuardTransport
    from minutebook.reading import Exchange, Found
    from minutebook.runtime import (
        Approval,
        Budgets,
        CapabilityFailed,
        Memory,
        MemoryResource,
        MemoryValue,
        Outcome,
        PendingApproval,
        Program,
        capability,
        delegate,
    )
    from minutebook.stores.journal import JournalStore
    from minutebook.stores.opening import (
        HostStore,
        MemoryStore,
        SQLiteStore,
        create_sqlite_decision_history_store,
        open_store,
    )
    from minutebook.turn import ToolCall, Turn
    from minutebook.windows import Window

__all__ = [
    "Abandoned",
    "Agent",
    "AgentBudgetExhausted",
    "AgentDecisionProviderSchemaViolation",
    "AgentDecisionProviderUnavailable",
    "AgentEvent",
    "AnthropicDecisionProvider",
    "Approval",
    "ApprovalRefused",
    "BlockingMismatch",
    "Budgets",
    "CallReference",
    "CallerError",
    "CapabilityFailed",
    "CheckpointRefused",
    "ContextGuardTransport",
    "ContextWindow",
    "Conversation",
    "ConversationKey",
    "Decision",
    "DecisionHistoryAbsent",
    "DecisionHistoryBusy",
    "DecisionHistoryConflict",
    "DecisionHistoryCorrupt",
    "DecisionHistoryError",
    "DecisionHistoryFenced",
    "DecisionHistoryLimitExceeded",
    "DecisionHistoryNotReserved",
    "DecisionHistoryRetentionExceeded",
    "DecisionHistorySchemaUnsupported",
    "DecisionHistoryStorageFailed",
    "DecisionHistoryStorageLocked",
    "DecisionHistoryStorageUnsafe",
    "DecisionHistoryStoreFull",
    "DecisionHistorySummaryInvalid",
    "DecisionProvider",
    "DecisionRequest",
    "Entry",
    "Event",
    "Exchange",
    "Finish",
    "Found",
    "GeminiDecisionProvider",
    "Header",
    "HistoryAbandoned",
    "HistoryCleared",
    "HistoryOptions",
    "HistoryResumed",
    "HistoryShortened",
    "HistorySummarized",
    "HistorySummary",
    "HistoryTrimmed",
    "HostStore",
    "ImportRefused",
    "Imported",
    "InvalidId",
    "InvalidMessage",
    "InvalidOption",
    "InvalidValue",
    "JournalStore",
    "Listing",
    "Memory",
    "MemoryRefused",
    "MemoryResource",
    "MemoryStore",
    "MemoryValue",
    "MessageAdded",
    "MinutebookError",
    "Observation",
    "Observer",
    "OpenAIChatDecisionProvider",
    "OpenAIDecisionProvider",
    "Outcome",
    "PairingViolation",
    "PendingApproval",
    "Program",
    "ProposedCall",
    "ProviderContextCount",
    "ProviderContextCountUnavailable",
    "ProviderContextWindowExceeded",
    "ProviderError",
    "ReasoningWithheld",
    "Receipt",
    "Record",
    "Resumed",
    "Runtime",
    "RuntimeRefusal",
    "SQLiteStore",
    "Sent",
    "StorageError",
    "StoreClosed",
    "SummarizationFailed",
    "Summarize",
    "ToolCall",
    "Totals",
    "Turn",
    "Window",
    "WindowLimits",
    "__version__",
    "capability",
    "create_sqlite_decision_history_store",
    "delegate",
    "open_store",
]

# Where each name lives. The names that are not here are errors.
_HOMES = {
    "Abandoned": "minutebook.model.decisions",
    "Agent": "minutebook.agent",
    "AgentEvent": "minutebook.model.chat_events",
    "AnthropicDecisionProvider": "minutebook.decisions",
    "Approval": "minutebook.runtime",
    "Budgets": "minutebook.runtime",
    "CallReference": "minutebook.model.decisions",
    "CapabilityFailed": "minutebook.runtime",
    "ContextGuardTransport": "minutebook.providers.guard",
    "ContextWindow": "minutebook.model.context",
    "Conversation": "minutebook.conversation",
    "ConversationKey": "minutebook.model.keys",
    "Decision": "minutebook.model.decisions",
    "DecisionProvider": "minutebook.ports",
    "DecisionRequest": "minutebook.model.decisions",
    "Entry": "minutebook.model.entries",
    "Event": "minutebook.model.events",
    "Exchange": "minutebook.reading",
    "Finish": "minutebook.model.decisions",
    "Found": "minutebook.reading",
    "GeminiDecisionProvider": "minutebook.decisions",
    "Header": "minutebook.model.record",
    "HistoryAbandoned": "minutebook.model.events",
    "HistoryCleared": "minutebook.model.chat_events",
    "HistoryOptions": "minutebook.decisions",
    "HistoryResumed": "minutebook.model.events",
    "HistoryShortened": "minutebook.model.chat_events",
    "HistorySummarized": "minutebook.model.chat_events",
    "HistorySummary": "minutebook.model.events",
    "HistoryTrimmed": "minutebook.model.events",
    "HostStore": "minutebook.stores.opening",
    "Imported": "minutebook.model.transfer",
    "JournalStore": "minutebook.stores.journal",
    "Listing": "minutebook.ports",
    "Memory": "minutebook.runtime",
    "MemoryResource": "minutebook.runtime",
    "MemoryStore": "minutebook.stores.opening",
    "MemoryValue": "minutebook.runtime",
    "MessageAdded": "minutebook.model.chat_events",
    "Observation": "minutebook.model.decisions",
    "Observer": "minutebook.ports",
    "OpenAIChatDecisionProvider": "minutebook.decisions",
    "OpenAIDecisionProvider": "minutebook.decisions",
    "Outcome": "minutebook.runtime",
    "PendingApproval": "minutebook.runtime",
    "Program": "minutebook.runtime",
    "ProposedCall": "minutebook.model.decisions",
    "ProviderContextCount": "minutebook.model.events",
    "ReasoningWithheld": "minutebook.model.events",
    "Receipt": "minutebook.model.record",
    "Record": "minutebook.model.record",
    "Resumed": "minutebook.model.decisions",
    "Runtime": "minutebook.programs",
    "SQLiteStore": "minutebook.stores.opening",
    "Sent": "minutebook.model.receipts",
    "SummarizationFailed": "minutebook.model.chat_events",
    "Summarize": "minutebook.ports",
    "ToolCall": "minutebook.turn",
    "Totals": "minutebook.ports",
    "Turn": "minutebook.turn",
    "Window": "minutebook.windows",
    "WindowLimits": "minutebook.model.bounds",
    "capability": "minutebook.runtime",
    "create_sqlite_decision_history_store": "minutebook.stores.opening",
    "delegate": "minutebook.runtime",
    "open_store": "minutebook.stores.opening",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'minutebook' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES.get(name, "minutebook.errors")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
