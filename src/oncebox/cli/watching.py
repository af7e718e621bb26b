"""What `oncebox status --watch` adds: what changed since the last look, and the keys that stand still."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from oncebox.core.keys import StuckKey, stuck_keys
from oncebox.core.outcomes import OBSERVED, Status
from oncebox.core.queries import Queries
from oncebox.core.steps import Call, Fetch, Op
from oncebox.runtime.inspect import WINDOW_SECONDS, Handled, StatusReport, read_status

KEYS_SHOWN = 5


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer since the last look, per second."""

    processed: float
    failed: float
    duplicates: float
    waiting: float
    """How fast the queue grows; below 0, it shrinks."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look: the report, and beside it what only two looks can tell."""

    report: StatusReport
    keys: list[StuckKey]
    totals: dict[str, dict[str, int]]
    """Outcomes by consumer, since somewhat before the watch began."""
    at_seconds: float
    rates: dict[str, Rates] = {}


def look(
    queries: Queries, consumers: list[str], handled: Handled | None, began_seconds: float, now_seconds: float
) -> Op[Look]:
    """Everything, and outcomes counted from a moment that stays the same from look to look."""
    report = yield from read_status(queries, consumers, handled=handled, known=True)
    # As long as the watch lasts: no minute drops out between two looks, so differences are what was added.
    since = now_seconds - began_seconds + WINDOW_SECONDS
    totals: dict[str, dict[str, int]] = {}
    for name, outcome, count, _ in (yield Fetch(Call(queries.status_tally, {"seconds": since}))):
        totals.setdefault(name, {})[outcome] = int(count)
    keys = yield from stuck_keys(queries)
    return Look(report=report, keys=keys[:KEYS_SHOWN], totals=totals, at_seconds=now_seconds)


def compared(now: Look, before: Look | None) -> Look:
    """The look with its rates, where there is one to compare it with."""
    if before is None or now.at_seconds <= before.at_seconds:
        return now
    seconds = now.at_seconds - before.at_seconds
    waited = {each.consumer: each.waiting + each.retrying for each in before.report.consumers}
    rates = {
        each.consumer: Rates(
            processed=_more(now, before, each.consumer, DONE) / seconds,
            failed=_more(now, before, each.consumer, (Status.RETRY, Status.DEAD)) / seconds,
            duplicates=_more(now, before, each.consumer, (Status.DUPLICATE, Status.WAITING)) / seconds,
            waiting=(each.waiting + each.retrying - waited.get(each.consumer, 0)) / seconds,
        )
        for each in now.report.consumers
    }
    return msgspec.structs.replace(now, rates=rates)


DONE = (Status.PROCESSED, *OBSERVED.values())


def _more(now: Look, before: Look, consumer: str, outcomes: tuple[Status, ...]) -> int:
    def total(look: Look) -> int:
        counts: Mapping[str, int] = look.totals.get(consumer, {})
        return sum(counts.get(str(outcome), 0) for outcome in outcomes)

    return max(total(now) - total(before), 0)
