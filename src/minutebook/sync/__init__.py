"""
The same objects for blocking callers: no event loop, no thread, no second implementation.

The core is `async def` and imports no event loop; over a store that finishes every call at once its coroutines never
suspend. So each method here runs the coroutine of the asynchronous object to its end with one step, and an async
iterator becomes a generator. What is documented there holds here; the names and arguments are equal, and a test
compares them. Names are loaded when they are first used, as those of `minutebook` are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import minutebook

if TYPE_CHECKING:
    # Values and errors have no colour: they are those of `minutebook`, and a checker finds them here too.
    from minutebook import (
        Abandoned as Abandoned,
    )
    from minutebook import (
        AgentBudgetExhausted as AgentBudgetExhausted,
    )
    from minutebook import (
        AgentDecisionProviderSchemaViolation as AgentDecisionProviderSchemaViolation,
    )
    from minutebook import (
        AgentDecisionProviderUnavailable as AgentDecisionProviderUnavailable,
    )
    from minutebook import (
        AgentEvent as AgentEvent,
    )
    from minutebook import (
        Approval as Approval,
    )
    from minutebook import (
        ApprovalRefused as ApprovalRefused,
    )
    from minutebook import (
        BlockingMismatch as BlockingMismatch,
    )
    from minutebook import (
        Budgets as Budgets,
    )
    from minutebook import (
        CallerError as CallerError,
    )
    from minutebook import (
        CallReference as CallReference,
    )
    from minutebook import (
        CapabilityFailed as CapabilityFailed,
    )
    from minutebook import (
        ChatHistoryTrimmed as ChatHistoryTrimmed,
    )
    from minutebook import (
        CheckpointRefused as CheckpointRefused,
    )
    from minutebook import (
        ContextWindow as ContextWindow,
    )
    from minutebook import (
        ConversationKey as ConversationKey,
    )
    from minutebook import (
        ConversationMessage as ConversationMessage,
    )
    from minutebook import (
        ConversationState as ConversationState,
    )
    from minutebook import (
        Decision as Decision,
    )
    from minutebook import (
        DecisionHistoryAbsent as DecisionHistoryAbsent,
    )
    from minutebook import (
        DecisionHistoryBusy as DecisionHistoryBusy,
    )
    from minutebook import (
        DecisionHistoryConflict as DecisionHistoryConflict,
    )
    from minutebook import (
        DecisionHistoryCorrupt as DecisionHistoryCorrupt,
    )
    from minutebook import (
        DecisionHistoryError as DecisionHistoryError,
    )
    from minutebook import (
        DecisionHistoryFenced as DecisionHistoryFenced,
    )
    from minutebook import (
        DecisionHistoryLimitExceeded as DecisionHistoryLimitExceeded,
    )
    from minutebook import (
        DecisionHistoryNotReserved as DecisionHistoryNotReserved,
    )
    from minutebook import (
        DecisionHistoryRegressed as DecisionHistoryRegressed,
    )
    from minutebook import (
        DecisionHistoryRetentionExceeded as DecisionHistoryRetentionExceeded,
    )
    from minutebook import (
        DecisionHistorySchemaUnsupported as DecisionHistorySchemaUnsupported,
    )
    from minutebook import (
        DecisionHistoryStorageFailed as DecisionHistoryStorageFailed,
    )
    from minutebook import (
        DecisionHistoryStorageLocked as DecisionHistoryStorageLocked,
    )
    from minutebook import (
        DecisionHistoryStorageUnsafe as DecisionHistoryStorageUnsafe,
    )
    from minutebook import (
        DecisionHistoryStoreFull as DecisionHistoryStoreFull,
    )
    from minutebook import (
        DecisionHistorySummaryInvalid as DecisionHistorySummaryInvalid,
    )
    from minutebook import (
        DecisionRequest as DecisionRequest,
    )
    from minutebook import (
        Entry as Entry,
    )
    from minutebook import (
        Event as Event,
    )
    from minutebook import (
        Exchange as Exchange,
    )
    from minutebook import (
        Finish as Finish,
    )
    from minutebook import (
        Found as Found,
    )
    from minutebook import (
        Header as Header,
    )
    from minutebook import (
        HistoryAbandoned as HistoryAbandoned,
    )
    from minutebook import (
        HistoryCleared as HistoryCleared,
    )
    from minutebook import (
        HistoryEntry as HistoryEntry,
    )
    from minutebook import (
        HistoryMessageTooLong as HistoryMessageTooLong,
    )
    from minutebook import (
        HistoryResumed as HistoryResumed,
    )
    from minutebook import (
        HistorySummarized as HistorySummarized,
    )
    from minutebook import (
        HistorySummary as HistorySummary,
    )
    from minutebook import (
        HistoryTrimmed as HistoryTrimmed,
    )
    from minutebook import (
        Imported as Imported,
    )
    from minutebook import (
        ImportRefused as ImportRefused,
    )
    from minutebook import (
        InvalidId as InvalidId,
    )
    from minutebook import (
        InvalidMessage as InvalidMessage,
    )
    from minutebook import (
        InvalidOption as InvalidOption,
    )
    from minutebook import (
        InvalidValue as InvalidValue,
    )
    from minutebook import (
        Listing as Listing,
    )
    from minutebook import (
        LLMContextMessage as LLMContextMessage,
    )
    from minutebook import (
        MemoryRefused as MemoryRefused,
    )
    from minutebook import (
        MemoryResource as MemoryResource,
    )
    from minutebook import (
        MemoryValue as MemoryValue,
    )
    from minutebook import (
        MessageAdded as MessageAdded,
    )
    from minutebook import (
        MinutebookError as MinutebookError,
    )
    from minutebook import (
        Observation as Observation,
    )
    from minutebook import (
        Observer as Observer,
    )
    from minutebook import (
        Outcome as Outcome,
    )
    from minutebook import (
        PairingViolation as PairingViolation,
    )
    from minutebook import (
        PendingApproval as PendingApproval,
    )
    from minutebook import (
        Program as Program,
    )
    from minutebook import (
        ProposedCall as ProposedCall,
    )
    from minutebook import (
        ProviderContextCount as ProviderContextCount,
    )
    from minutebook import (
        ProviderContextCountUnavailable as ProviderContextCountUnavailable,
    )
    from minutebook import (
        ProviderContextWindowExceeded as ProviderContextWindowExceeded,
    )
    from minutebook import (
        ProviderError as ProviderError,
    )
    from minutebook import (
        ReasoningWithheld as ReasoningWithheld,
    )
    from minutebook import (
        Receipt as Receipt,
    )
    from minutebook import (
        Record as Record,
    )
    from minutebook import (
        Resumed as Resumed,
    )
    from minutebook import (
        RuntimeRefusal as RuntimeRefusal,
    )
    from minutebook import (
        Sent as Sent,
    )
    from minutebook import (
        StorageError as StorageError,
    )
    from minutebook import (
        StoreClosed as StoreClosed,
    )
    from minutebook import (
        SummarizationFailed as SummarizationFailed,
    )
    from minutebook import (
        Summarize as Summarize,
    )
    from minutebook import (
        ToolCall as ToolCall,
    )
    from minutebook import (
        Totals as Totals,
    )
    from minutebook import (
        TurnReason as TurnReason,
    )
    from minutebook import (
        TurnResponse as TurnResponse,
    )
    from minutebook import (
        Window as Window,
    )
    from minutebook import (
        WindowLimits as WindowLimits,
    )
    from minutebook import (
        capability as capability,
    )
    from minutebook import (
        delegate as delegate,
    )
    from minutebook.sync.agent import Agent
    from minutebook.sync.conversation import Conversation, Turn
    from minutebook.sync.decisions import (
        AnthropicDecisionProvider,
        GeminiDecisionProvider,
        HistoryOptions,
        OpenAIChatDecisionProvider,
        OpenAIDecisionProvider,
    )
    from minutebook.sync.engine import (
        Engine,
        EngineTurn,
        HistoryConfig,
        HistoryManager,
        HistoryStore,
        create_history_manager,
        create_in_memory_store,
    )
    from minutebook.sync.guard import ContextGuardTransport
    from minutebook.sync.programs import DecisionProvider, Memory, Runtime
    from minutebook.sync.stores import (
        HostStore,
        JournalStore,
        MemoryStore,
        PostgresStore,
        RedisStore,
        SQLiteStore,
        create_sqlite_decision_history_store,
        open_store,
    )

__all__ = [
    "Agent",
    "AnthropicDecisionProvider",
    "ContextGuardTransport",
    "Conversation",
    "DecisionProvider",
    "Engine",
    "EngineTurn",
    "GeminiDecisionProvider",
    "HistoryConfig",
    "HistoryManager",
    "HistoryOptions",
    "HistoryStore",
    "HostStore",
    "JournalStore",
    "Memory",
    "MemoryStore",
    "OpenAIChatDecisionProvider",
    "OpenAIDecisionProvider",
    "PostgresStore",
    "RedisStore",
    "Runtime",
    "SQLiteStore",
    "Turn",
    "create_history_manager",
    "create_in_memory_store",
    "create_sqlite_decision_history_store",
    "open_store",
]

# Where each name that is not one of `minutebook` lives.
_HOMES = {
    "Agent": "minutebook.sync.agent",
    "AnthropicDecisionProvider": "minutebook.sync.decisions",
    "ContextGuardTransport": "minutebook.sync.guard",
    "Conversation": "minutebook.sync.conversation",
    "DecisionProvider": "minutebook.sync.programs",
    "Engine": "minutebook.sync.engine",
    "EngineTurn": "minutebook.sync.engine",
    "GeminiDecisionProvider": "minutebook.sync.decisions",
    "HistoryConfig": "minutebook.sync.engine",
    "HistoryManager": "minutebook.sync.engine",
    "HistoryOptions": "minutebook.sync.decisions",
    "HistoryStore": "minutebook.sync.engine",
    "HostStore": "minutebook.sync.stores",
    "JournalStore": "minutebook.sync.stores",
    "Memory": "minutebook.sync.programs",
    "MemoryStore": "minutebook.sync.stores",
    "OpenAIChatDecisionProvider": "minutebook.sync.decisions",
    "OpenAIDecisionProvider": "minutebook.sync.decisions",
    "PostgresStore": "minutebook.sync.stores",
    "RedisStore": "minutebook.sync.stores",
    "Runtime": "minutebook.sync.programs",
    "SQLiteStore": "minutebook.sync.stores",
    "Turn": "minutebook.sync.conversation",
    "create_history_manager": "minutebook.sync.engine",
    "create_in_memory_store": "minutebook.sync.engine",
    "create_sqlite_decision_history_store": "minutebook.sync.stores",
    "open_store": "minutebook.sync.stores",
}

if not TYPE_CHECKING:  # checkers are told the names above

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            if name not in minutebook.__all__:
                raise AttributeError(f"module 'minutebook.sync' has no attribute {name!r}")
            return getattr(minutebook, name)
        from importlib import import_module

        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *minutebook.__all__, *__all__})
