"""Who did what by hand, and why: written in the transaction of the change it tells about."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oncebox.core.outgoing import new_id
from oncebox.core.queries import Queries
from oncebox.core.steps import Call


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
