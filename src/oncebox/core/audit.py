"""Who did what by hand, and why: written in the transaction of the change it tells about."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oncebox.core.outgoing import new_id
from oncebox.core.queries import Queries
from oncebox.core.steps import Call, Fetch, Op

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of a person. All rows of one command share its id."""

    verb: str
    """The command: `outbox retry`, `effects settle`."""
    who: str
    reason: str
    filter: dict[str, object] = {}
    """The words that chose the messages."""
    id: str = msgspec.field(default_factory=new_id)


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    """A message that an act has changed, and what it is now. Outgoing messages have no consumer."""

    source: str
    id: str
    result: str
    consumer: str = ""


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the audit."""

    act: str
    at: datetime
    who: str
    verb: str
    reason: str
    filter: dict[str, object]
    consumer: str
    source: str
    id: str
    result: str


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Which of them are meant. What is None does not matter."""

    ids: tuple[str, ...] = ()
    act: str | None = None
    who: str | None = None
    verb: str | None = None
    """The command, or its first word: `dead` is all of `dead redrive`, `dead discard`, …"""
    consumer: str | None = None
    source: str | None = None
    older_seconds: float | None = None
    newer_seconds: float | None = None


def audited(queries: Queries, search: Search, limit: int) -> Op[list[Deed]]:
    """What was done by hand, the latest first."""
    params = {**msgspec.structs.asdict(search), "ids": list(search.ids) or None, "limit": limit}
    rows = yield Fetch(Call(queries.audit_list, params))
    return [
        Deed(
            act=row[0], at=instant(row[1]), who=row[2], verb=row[3], reason=row[4],
            filter=msgspec.json.decode(row[5]), consumer=row[6], source=row[7], id=row[8], result=row[9],
        )
        for row in rows
    ]  # fmt: skip


def instant(value: Any) -> datetime:
    """A column's time in UTC: a timestamp, or microseconds since 1970."""
    return value.astimezone(UTC) if isinstance(value, datetime) else _EPOCH + timedelta(microseconds=value)


def audit(queries: Queries, act: Act, touched: Iterable[Touched]) -> Call:
    """The rows of an act."""
    rows = [
        {"consumer": each.consumer, "source": each.source, "message_id": each.id, "result": each.result}
        for each in touched
    ]
    chosen = msgspec.json.encode({word: value for word, value in act.filter.items() if value is not None})
    params = {
        "act": act.id,
        "who": act.who,
        "verb": act.verb,
        "reason": act.reason,
        "filter": chosen.decode(),
    }
    return Call(queries.audit, {**params, "rows": rows})
