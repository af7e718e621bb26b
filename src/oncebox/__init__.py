"""oncebox: each message takes effect exactly once, in your own database.

The guard (`Inbox`) joins a transaction you already have; the app (`App`) owns the loop.
Importing this needs nothing but msgspec; drivers, brokers and the command line are loaded when used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncebox.app import App
    from oncebox.consumer import Consumer
    from oncebox.core.effects import Call
    from oncebox.core.outcomes import Outcome, Status
    from oncebox.core.work import Tx
    from oncebox.errors import Dead, Discard, OnceboxError, Retry
    from oncebox.identity import Identity
    from oncebox.inbox import Claim, Inbox
    from oncebox.message import Message
    from oncebox.outbox import Outbox
    from oncebox.policy import Backoff, Policy
    from oncebox.stores import FolderStore

__version__ = "0.1.0"

_HOMES = {
    "App": "oncebox.app",
    "Backoff": "oncebox.policy",
    "Call": "oncebox.core.effects",
    "Claim": "oncebox.inbox",
    "Consumer": "oncebox.consumer",
    "Dead": "oncebox.errors",
    "Discard": "oncebox.errors",
    "FolderStore": "oncebox.stores",
    "Identity": "oncebox.identity",
    "Inbox": "oncebox.inbox",
    "Message": "oncebox.message",
    "OnceboxError": "oncebox.errors",
    "Outbox": "oncebox.outbox",
    "Outcome": "oncebox.core.outcomes",
    "Policy": "oncebox.policy",
    "Retry": "oncebox.errors",
    "Status": "oncebox.core.outcomes",
    "Tx": "oncebox.core.work",
}

__all__ = [
    "App",
    "Backoff",
    "Call",
    "Claim",
    "Consumer",
    "Dead",
    "Discard",
    "FolderStore",
    "Identity",
    "Inbox",
    "Message",
    "OnceboxError",
    "Outbox",
    "Outcome",
    "Policy",
    "Retry",
    "Status",
    "Tx",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `import oncebox` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'oncebox' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
