"""What stands still: backlog, workers that are gone, and everything that waits for a person."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from oncebox.core.queries import Queries
from oncebox.core.settle import open_effects
from oncebox.core.steps import Call, Fetch, Op
from oncebox.doctor.findings import Finding, found
from oncebox.runtime.inspect import COUNT_CAP, ConsumerStatus, Handled, StatusReport, read_status
from oncebox.runtime.places import read_partitioned

RETENTION_SECONDS = 86_400.0
"""A walk through the ledger is due every few minutes; after a day something is wrong."""


def check_standing(
    queries: Queries,
    consumers: Collection[str],
    handled: Handled,
    patience_seconds: float,
    lapse_seconds: float,
) -> Op[list[Finding]]:
    """All of it; what is younger than `patience_seconds` is not told."""
    report = yield from read_status(queries, consumers, handled=handled)
    findings = [finding for each in report.consumers for finding in _consumer(each, report, patience_seconds)]
    findings += _workers(report, lapse_seconds)
    findings += _outbox(report, patience_seconds)
    late = yield Fetch(Call(queries.doctor_leases, {"seconds": patience_seconds, "cap": COUNT_CAP}))
    for consumer, count, seconds in late:
        text = f"{count:,} whose lease ran out {seconds:,.0f} s ago and that nobody has taken since"
        findings.append(found("lease-stuck", f"consumer {consumer}", text))
    effects = yield from open_effects(queries)
    parked = [each for each in effects if each.state == "parked"]
    if parked:
        text = f"{len(parked):,} parked, the oldest for {parked[0].age_seconds:,.0f} s"
        findings.append(found("effects-unknown", "effects", text))
    hanging = [each for each in effects if each.state == "started" and each.age_seconds > patience_seconds]
    if hanging:
        text = f"{len(hanging):,} begun and not ended, the oldest {hanging[0].age_seconds:,.0f} s ago"
        findings.append(found("effects-started", "effects", text))
    for split in (yield from read_partitioned(queries)):
        if split.missing:
            text = f"its ledger has no partition for {', '.join(split.missing)}"
            findings.append(found("partitions-missing", f"consumer {split.consumer}", text))
    walked = yield Fetch(Call(queries.doctor_sweep, {}))
    if walked and walked[0][0] > RETENTION_SECONDS:
        text = f"the last walk to the ledger's end was {walked[0][0] / 3600:,.0f} h ago"
        findings.append(found("retention-behind", "ledger", text))
    return findings


def _consumer(each: ConsumerStatus, report: StatusReport, patience_seconds: float) -> Iterator[Finding]:
    subject = f"consumer {each.consumer}"
    queued = each.waiting + each.retrying
    if queued and each.oldest_seconds is not None and each.oldest_seconds > patience_seconds:
        text = f"{queued:,} in the queue, the oldest for {each.oldest_seconds:,.0f} s"
        yield found("backlog-old", subject, text)
    if queued and not report.workers:
        yield found("workers-none", subject, f"{queued:,} in the queue, and no worker process is known")
    for kind, count in each.unhandled.items():
        yield found("type-unhandled", subject, f"{count:,} of type {kind!r}, which no handler here takes")
    if each.blocked_keys:
        yield found("keys-blocked", subject, f"{each.blocked_keys:,} blocked by a dead message")
    if each.gapped_keys:
        yield found("keys-gapped", subject, f"{each.gapped_keys:,} waiting for a version that is missing")
    dead = {reason: count for reason, count in each.dead.items() if reason != "conflict"}
    if dead:
        text = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dead.items()))
        yield found("dead", subject, text)
    if each.unfinished:
        yield found(
            "claims-unfinished", subject, f"{each.unfinished:,} committed although their block had failed"
        )
    if "conflict" in each.dead:
        yield found("conflicts", subject, f"{each.dead['conflict']:,} with an id that another message has")


def _workers(report: StatusReport, lapse_seconds: float) -> Iterator[Finding]:
    for worker in report.workers:
        if worker.heartbeat_seconds > lapse_seconds:
            text = f"not heard of for {worker.heartbeat_seconds:,.0f} s, with {worker.in_hand:,} in hand"
            yield found("worker-lapsed", f"worker {worker.host}, process {worker.pid}", text)


def _outbox(report: StatusReport, patience_seconds: float) -> Iterator[Finding]:
    outbox = report.outbox
    if outbox.waiting and (outbox.oldest_seconds or 0.0) > patience_seconds:
        text = f"{outbox.waiting:,} waiting, the oldest for {outbox.oldest_seconds:,.0f} s"
        yield found("outbox-old", "outbox", text)
    if outbox.parked:
        yield found("outbox-parked", "outbox", f"{outbox.parked:,} parked")
