"""A message as the archive keeps it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from oncebox.codec import unpack_headers, unpack_provenance
from oncebox.errors import ArchiveError
from oncebox.message import Message


class Archived(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as the archive keeps it: its ledger row, its result, and its payload where that was kept."""

    consumer: str
    source: str
    id: str
    type: str
    fingerprint: bytes
    received: datetime
    finished: datetime | None
    """None for a stored message: when exactly it was finished is written nowhere."""
    state: int
    """As in the ledger: 0 done, 2 discarded, 3 stale, 4 suppressed."""
    result: bytes | None = None
    place: int | None = None
    """Where it stands in the order in which this consumer's messages took effect; None without a payload."""
    key: str | None = None
    payload: bytes | None = None
    """None where the consumer did not keep it (`keep_payload="always"` does)."""
    headers: bytes = b""
    content_type: str = ""
    provenance: str = ""

    def message(self, *, replay: bool = False) -> Message:
        """The message as it was handled. ArchiveError where its payload was not kept."""
        if self.payload is None:
            raise ArchiveError(
                f"consumer {self.consumer!r}: id {self.id!r} was archived without its payload; "
                'keep_payload="always" keeps it'
            )
        return Message(
            id=self.id,
            source=self.source,
            type=self.type,
            payload=self.payload,
            headers=unpack_headers(self.headers),
            key=self.key,
            content_type=self.content_type,
            provenance=unpack_provenance(self.provenance),
            replay=replay,
        )
