"""Where a publication wants to go: for sinks that have more than one place."""

from __future__ import annotations

from oncebox.message import Message

__all__ = ["topic_of"]


def topic_of(message: Message) -> str | None:
    """The `topic=` of a publication; None when it named none.

    A message that was *received* has more in its provenance, and where it came from is no destination.
    """
    where = message.provenance
    return str(where["topic"]) if where.keys() == {"topic"} else None
