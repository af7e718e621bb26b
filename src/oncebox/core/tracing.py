"""What traces are told, where somebody traces. Nothing here knows who that is; without it nothing is asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from oncebox.message import Headers

if TYPE_CHECKING:
    from oncebox.core.work import Item

TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C trace context: which trace a message belongs to, and where in it it was made."""


class Tracing(Protocol):
    """Somebody who traces. None of this may raise."""

    def handling(
        self, consumer: str, items: Sequence[Item], idempotency_key: str | None
    ) -> AbstractContextManager[None]:
        """Around one call of a handler: one item, or a batch. `idempotency_key` is set for an effect."""
        ...

    def carried(self) -> Headers | None:
        """The headers for a message that is made now; None where nothing is being traced."""
        ...
