"""What a database holds at one moment, as text: every table of the user's, and what oncebox keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec

from oncebox.errors import ConfigError

Row = tuple[str | None, ...]

KEPT: dict[str, tuple[str, ...]] = {
    "ledger": ("consumer", "source", "message_id", "state"),
    "result": ("consumer", "source", "message_id", "body"),
    "dead": ("consumer", "source", "message_id", "reason", "error_type"),
    "queue": ("consumer", "source", "message_id"),
    "outbox": ("id", "source", "type", "topic", "key", "payload", "content_type"),
}
"""What of oncebox's own tables must be the same after a crash. How often something was tried, by whom
and when may differ."""
SHIFT = 1_000_003
"""How far sequences jump between two clean runs, so that what comes from a sequence can be told."""


SIZE_BYTES_MAX = 512 << 20
HOST = "oncebox.testing"
"""What the kit's own processes give as their host; those that have died are in nobody's way."""


class Table(msgspec.Struct, frozen=True):
    """One table's rows, in no order; `key` are the columns of its primary key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: Counter[Row]

    def only(self, columns: Iterable[str]) -> Table:
        """These columns of it."""
        wanted = tuple(columns)
        places = [self.columns.index(name) for name in wanted]
        rows: Counter[Row] = Counter()
        for row, times in self.rows.items():
            rows[tuple(row[place] for place in places)] += times
        return Table(wanted, (), rows)


State = dict[str, Table]
"""Tables by name; oncebox's own are written `oncebox.ledger` and so on, whatever the engine."""


class Tables(Protocol):
    """A database that can be looked at as a whole and put back to where it was."""

    def save(self) -> None:
        """Remember everything as it is now."""
        ...

    def read(self) -> State:
        """Everything as it is now."""
        ...

    def touch(self) -> None:
        """Somebody is about to change something: what was read is of the past."""
        ...

    def restore(self, *, shifted: bool = False) -> None:
        """Everything as it was at `save`; `shifted` leaves sequences somewhere else, on purpose."""
        ...

    def make_due(self) -> bool:
        """Let the time pass that queued messages wait for. Whether any of them waited."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


def check_is_for_tests(size_bytes: int, workers: int) -> None:
    """ConfigError for a database that is too large for tests, or on which an app is at work."""
    if size_bytes > SIZE_BYTES_MAX:
        raise ConfigError(
            f"this database holds {size_bytes >> 20:,} MiB, which is no database for tests: a proof puts all of its "
            "rows back again and again"
        )
    if workers:
        raise ConfigError(
            "an app is at work on this database (its heartbeat is seconds old); a proof puts all rows back again and "
            "again, so it needs a database of its own"
        )


def kept(name: str, table: Table) -> Table:
    """What is compared of one of oncebox's tables."""
    return table.only(KEPT[name])


def as_text(value: object) -> str | None:
    """A value as a story can show it; bytes are text where they can be."""
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "0x" + raw.hex()
    return value if isinstance(value, str) else str(value)
