"""
The runtime: a program, its authority and budgets, and the loop that turns proposals into observations.

A decision provider proposes; everything that really happens is decided here, from the program and what is left of its
budgets, and never from what a message says (SPEC D2, D3, D28).
"""

from minutebook.runtime.approvals import Approval, PendingApproval
from minutebook.runtime.budgets import Budgets
from minutebook.runtime.capabilities import Capability, CapabilityFailed, capability
from minutebook.runtime.delegation import delegate
from minutebook.runtime.loop import Outcome, Runtime
from minutebook.runtime.memory import Memory, MemoryResource, MemoryValue
from minutebook.runtime.observations import interrupted
from minutebook.runtime.program import Program

__all__ = [
    "Approval",
    "Budgets",
    "Capability",
    "CapabilityFailed",
    "Memory",
    "MemoryResource",
    "MemoryValue",
    "Outcome",
    "PendingApproval",
    "Program",
    "Runtime",
    "capability",
    "delegate",
    "interrupted",
]
