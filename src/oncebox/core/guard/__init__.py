"""The guard's decisions: whose is this key, and is the transaction that claimed it still the same?

Flows that yield steps, written once for every handle. They begin, commit, roll back and retry
nothing: the transaction is the user's. What a step does on a real handle is the adapters' matter.
"""

from oncebox.core.guard.flows import claim, claim_many, leave, resolve
from oncebox.core.guard.steps import Answer, Ask, Entry, Held, Hold, Join, Look, Release, View

__all__ = [
    "Answer",
    "Ask",
    "Entry",
    "Held",
    "Hold",
    "Join",
    "Look",
    "Release",
    "View",
    "claim",
    "claim_many",
    "leave",
    "resolve",
]
