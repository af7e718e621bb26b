"""The guard: each message takes effect once, inside a transaction that the caller already has.

It joins, claims and checks; it never begins, commits or retries.
"""

from oncebox.inbox.claims import AsyncOnce, Claim, Once
from oncebox.inbox.inbox import Inbox

__all__ = ["AsyncOnce", "Claim", "Inbox", "Once"]
