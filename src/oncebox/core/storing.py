"""A message as a row of the queue, and its way in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncebox.codec import pack_headers, pack_provenance
from oncebox.core.steps import Call
from oncebox.message import Message

if TYPE_CHECKING:
    from oncebox.core.work import Item, Work


def row_to_store(
    message: Message, fingerprint: bytes, payload: bytes, lane: str | None = None, version: int | None = None
) -> dict[str, Any]:
    """One row for the query `store`."""
    return {
        "source": message.source,
        "message_id": message.id,
        "type": message.type,
        "fingerprint": fingerprint,
        "key": message.key,
        "payload": payload,
        "headers": pack_headers(message.headers),
        "content_type": message.content_type,
        "provenance": pack_provenance(message.provenance),
        "lane": lane,
        "version": version,
    }


def rows_to_store(work: Work, items: Sequence[Item]) -> Call:
    """The call that puts items into ledger and queue, and returns those that were new."""
    rows = [
        row_to_store(item.message, item.fingerprint, item.payload, item.lane, item.version) for item in items
    ]
    return work.call(work.queries.store, consumer=work.consumer, rows=rows)
