"""What is kept of a message once it is done: nothing, or everything that a replay needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncebox.codec import pack_headers, pack_provenance
from oncebox.core.steps import Call

if TYPE_CHECKING:
    from oncebox.core.work import Item, Work


def keeping(work: Work, items: Sequence[Item]) -> tuple[Call, ...]:
    """The rows of `kept`, for the effects' own transaction; none unless keep_payload="always"."""
    if not work.keeps or not items:
        return ()
    rows = [
        {
            "source": item.message.source,
            "message_id": item.message.id,
            "key": item.message.key,
            "payload": item.payload,
            "headers": pack_headers(item.message.headers),
            "content_type": item.message.content_type,
            "provenance": pack_provenance(item.message.provenance),
        }
        for item in items
    ]
    return (work.call(work.queries.keep, consumer=work.consumer, rows=rows),)
