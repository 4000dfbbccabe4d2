"""
What users need to test their own stores and agents. Nothing else in the package imports it.

    FrozenClock          time that moves only when told to
    FaultyJournal        a journal that fails, is cancelled or loses its reply at a chosen call
    SuspendingJournal    a journal that suspends around every call, so that each await can be cancelled
    ScriptedProvider     a decision provider that answers by a script
    drive, cancel_at     coroutines run to their end without an event loop, or cut at the n-th await
    conformance          the suite that a store of your own has to pass
    fakes                strict fakes of the providers' APIs, behind which any client can be put
"""

from minutebook.testing.clock import FrozenClock
from minutebook.testing.drive import Cut, Ended, cancel_at, checkpoint, drive
from minutebook.testing.fakes import Answer, FunctionCall, ProviderFake
from minutebook.testing.faults import Fault, FaultyJournal, SuspendingJournal
from minutebook.testing.scripted import ScriptedProvider

__all__ = [
    "Answer",
    "Cut",
    "Ended",
    "Fault",
    "FaultyJournal",
    "FrozenClock",
    "FunctionCall",
    "ProviderFake",
    "ScriptedProvider",
    "SuspendingJournal",
    "cancel_at",
    "checkpoint",
    "drive",
]
