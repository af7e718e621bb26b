"""Which metrics there are: from what processes have counted, and from what the database shows now."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from oncebox.core.outcomes import Status
from oncebox.metrics.families import Family, Kind, Sample, number
from oncebox.runtime.inspect import ConsumerStatus, Replays, StatusReport
from oncebox.runtime.meter import BUCKETS, LAG_BUCKETS, Durations, Snapshot

ALWAYS = (Status.PROCESSED, Status.DUPLICATE, Status.RETRY, Status.DEAD)
"""Outcomes that are shown from the start: the first step of a series from nothing is no increase."""


class Described(NamedTuple):
    """A metric's kind, and what it means."""

    kind: Kind
    help: str


METRICS: dict[str, Described] = {
    "oncebox_messages_total": Described(
        "counter", "Deliveries and stored messages by how they ended, since these processes started."
    ),
    "oncebox_processing_seconds": Described(
        "histogram", "How long calls of handlers took, whatever came of them; a batch is one call."
    ),
    "oncebox_lag_seconds": Described(
        "histogram",
        "How old messages were when their effects were committed, by their own time or their broker's.",
    ),
    "oncebox_purged_total": Described("counter", "Ledger rows that retention has deleted."),
    "oncebox_purge_failures_total": Described("counter", "Walks of retention that failed."),
    "oncebox_replayed_total": Described("counter", "Messages that replays have handled again."),
    "oncebox_replay_suppressed_total": Described(
        "counter", "Publications, sends and calls to the outside that replays have left out."
    ),
    "oncebox_archived_total": Described(
        "counter", "Rows that were written to an archive and verified there."
    ),
    "oncebox_archive_failures_total": Described(
        "counter", "Walks of retention in which an archive failed; what it did not take is kept."
    ),
    "oncebox_effect_handlers": Described("gauge", "Handlers of the consumer that call the outside world."),
    "oncebox_database_up": Described("gauge", "1 when the database answered this scrape, else 0."),
    "oncebox_waiting": Described("gauge", "Messages in the queue that wait for a worker, a time or a turn."),
    "oncebox_retrying": Described("gauge", "Messages in the queue of which an attempt has failed."),
    "oncebox_working": Described("gauge", "Messages in hand."),
    "oncebox_oldest_waiting_seconds": Described(
        "gauge", "How long ago the oldest message that is still in the queue was received; 0 without one."
    ),
    "oncebox_dead": Described("gauge", "Messages kept for a person, by reason."),
    "oncebox_blocked_keys": Described("gauge", "Ordered keys whose head is dead."),
    "oncebox_gapped_keys": Described("gauge", "Ordered keys that wait for a version that is missing."),
    "oncebox_outbox_waiting": Described("gauge", "Messages on their way out."),
    "oncebox_outbox_parked": Described("gauge", "Outgoing messages kept for a person."),
    "oncebox_outbox_oldest_seconds": Described(
        "gauge", "How long ago the oldest message that is on its way out was written; 0 without one."
    ),
    "oncebox_unknown_effects": Described(
        "gauge", "Calls to the outside whose end nobody knows, kept for a person."
    ),
    "oncebox_started_effects": Described("gauge", "Calls to the outside that have begun and not yet ended."),
    "oncebox_unfinished_claims": Described(
        "gauge",
        "Claims of the guard's that were committed although their block had failed, kept for a person.",
    ),
    "oncebox_workers": Described("gauge", "Processes that the database has heard of, on every machine."),
    "oncebox_oldest_heartbeat_seconds": Described(
        "gauge", "How long ago the quietest of these processes was heard of; 0 without any."
    ),
}


class Subject(NamedTuple):
    """A consumer of this app: the types its handlers name, and how many of these are effects."""

    types: tuple[str, ...]
    effects: int


def counted(snapshot: Snapshot, subjects: Mapping[str, Subject]) -> list[Family]:
    """What processes have counted themselves."""
    messages = {
        (name, kind, str(outcome)): 0
        for name, subject in subjects.items()
        for kind, outcome in itertools.product(subject.types, ALWAYS)
    }
    messages |= {(consumer, kind, outcome): n for consumer, kind, outcome, n in snapshot.messages}
    return [
        _family(
            "oncebox_messages_total",
            (
                Sample({"consumer": consumer, "type": kind, "outcome": outcome}, n)
                for (consumer, kind, outcome), n in sorted(messages.items())
            ),
        ),
        _family(
            "oncebox_processing_seconds",
            (
                sample
                for consumer, kind, found in snapshot.durations
                for sample in _histogram({"consumer": consumer, "type": kind}, found, BUCKETS)
            ),
        ),
        _family(
            "oncebox_lag_seconds",
            (
                sample
                for consumer, kind, found in snapshot.lags
                for sample in _histogram({"consumer": consumer, "type": kind}, found, LAG_BUCKETS)
            ),
        ),
        _family(
            "oncebox_purged_total",
            (Sample({"consumer": name}, snapshot.purged.get(name, 0)) for name in sorted(subjects)),
        ),
        _family("oncebox_purge_failures_total", [Sample({}, snapshot.purge_failures)]),
        _family(
            "oncebox_archived_total",
            (Sample({"consumer": name}, snapshot.archived.get(name, 0)) for name in sorted(subjects)),
        ),
        _family(
            "oncebox_archive_failures_total",
            (Sample({"consumer": name}, snapshot.archive_failures.get(name, 0)) for name in sorted(subjects)),
        ),
        _family(
            "oncebox_effect_handlers",
            (Sample({"consumer": name}, subject.effects) for name, subject in sorted(subjects.items())),
        ),
    ]


def seen(report: StatusReport | None, subjects: Mapping[str, Subject]) -> list[Family]:
    """What the database shows; of the consumers only this app's. None: it did not answer."""
    up = _family("oncebox_database_up", [Sample({}, 0 if report is None else 1)])
    if report is None:
        return [up]
    consumers = [each for each in report.consumers if each.consumer in subjects]

    def each(name: str, field: str) -> Family:
        return _family(name, (Sample(_of(one), getattr(one, field) or 0) for one in consumers))

    def replays(name: str) -> Replays:
        return report.replays.get(name, Replays())

    def one(name: str, value: float | None) -> Family:
        return _family(name, [Sample({}, value or 0)])

    return [
        up,
        each("oncebox_waiting", "waiting"),
        each("oncebox_retrying", "retrying"),
        each("oncebox_working", "working"),
        each("oncebox_oldest_waiting_seconds", "oldest_seconds"),
        _family(
            "oncebox_replayed_total",
            (Sample({"consumer": name}, replays(name).handled) for name in sorted(subjects)),
        ),
        _family(
            "oncebox_replay_suppressed_total",
            (Sample({"consumer": name}, replays(name).suppressed) for name in sorted(subjects)),
        ),
        _family(
            "oncebox_dead",
            (
                Sample({**_of(one), "reason": reason}, n)
                for one in consumers
                for reason, n in sorted(one.dead.items())
            ),
        ),
        each("oncebox_blocked_keys", "blocked_keys"),
        each("oncebox_gapped_keys", "gapped_keys"),
        one("oncebox_outbox_waiting", report.outbox.waiting),
        one("oncebox_outbox_parked", report.outbox.parked),
        one("oncebox_outbox_oldest_seconds", report.outbox.oldest_seconds),
        one("oncebox_unknown_effects", report.effects.get("parked")),
        one("oncebox_started_effects", report.effects.get("started")),
        # Of all consumers: those of the guard are in no app.
        one("oncebox_unfinished_claims", sum(each.unfinished for each in report.consumers)),
        one("oncebox_workers", len(report.workers)),
        one(
            "oncebox_oldest_heartbeat_seconds",
            max((worker.heartbeat_seconds for worker in report.workers), default=0.0),
        ),
    ]


def _family(name: str, samples: Iterable[Sample]) -> Family:
    return Family(name, *METRICS[name], list(samples))


def _of(one: ConsumerStatus) -> dict[str, str]:
    return {"consumer": one.consumer}


def _histogram(labels: dict[str, str], found: Durations, buckets: Sequence[float]) -> list[Sample]:
    bounds = [*(number(bound) for bound in buckets), "+Inf"]
    running = list(itertools.accumulate(found.counts))
    parts = [Sample({**labels, "le": le}, n, "_bucket") for le, n in zip(bounds, running, strict=True)]
    return [*parts, Sample(labels, found.seconds, "_sum"), Sample(labels, running[-1], "_count")]
