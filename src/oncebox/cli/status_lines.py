"""What `oncebox status` says below its table: a line each, and none for what there is none of."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from oncebox.cli.output import plain
from oncebox.cli.text import age, count, many
from oncebox.core.outcomes import Status
from oncebox.runtime.inspect import StatusReport


def lines(report: StatusReport) -> list[RenderableType]:
    """All of them, first what needs somebody."""
    return [
        *_observing(report), *_unfinished(report), *_unhandled(report), *_keys(report), *_outgoing(report),
        *_partitioned(report), *_watermarked(report),
    ]  # fmt: skip


def _observing(report: StatusReport) -> list[RenderableType]:
    """A line for each consumer that lets duplicates and conflicts run."""
    lines: list[RenderableType] = []
    for each in report.consumers:
        if each.observed:
            duplicates = each.outcomes.get(Status.OBSERVED_DUPLICATE, 0)
            conflicts = each.outcomes.get(Status.OBSERVED_CONFLICT, 0)
            text = (
                f"{each.consumer} only observes: {many(duplicates, 'duplicate')} and {many(conflicts, 'conflict')} "
                "took effect in 5 minutes, and would have been suppressed"
            )
            lines.append(plain(text, "yellow"))
    return lines


def _unfinished(report: StatusReport) -> list[RenderableType]:
    """A line for each consumer with claims that somebody has to decide about."""
    return [
        plain(
            f"{each.consumer}: {count(each.unfinished, report.count_cap)} claimed by the guard and committed "
            "unfinished (oncebox dead list --why unfinished)",
            "red",
        )
        for each in report.consumers
        if each.unfinished
    ]


def _unhandled(report: StatusReport) -> list[RenderableType]:
    """A line for each type that waits and that nobody takes."""
    return [
        plain(
            f"{each.consumer}: {many(number, 'message')} of type {kind!r} in the queue, and no handler takes it",
            "red",
        )
        for each in report.consumers
        for kind, number in each.unhandled.items()
    ]


def _keys(report: StatusReport) -> list[RenderableType]:
    """A line for each consumer with keys that stand still."""
    return [
        plain(
            f"{consumer.consumer}: {many(consumer.blocked_keys, 'key')} blocked, {consumer.gapped_keys:,} with a gap "
            "(oncebox keys list)",
            "red",
        )
        for consumer in report.consumers
        if consumer.blocked_keys or consumer.gapped_keys
    ]


def _outgoing(report: StatusReport) -> list[RenderableType]:
    """A line each for what is on its way out and for calls that are unknown; none where there is nothing."""
    outbox, cap = report.outbox, report.count_cap
    lines: list[RenderableType] = []
    if outbox.waiting or outbox.parked:
        text = f"outbox: {count(outbox.waiting, cap)} waiting"
        text += f", oldest {age(outbox.oldest_seconds)}" if outbox.waiting else ""
        parked = f", {count(outbox.parked, cap)} parked" if outbox.parked else ""
        lines.append(Text.assemble(text, (parked, "red")))
    if report.effects:
        states = ", ".join(f"{count(number, cap)} {state}" for state, number in report.effects.items())
        style = "red" if "parked" in report.effects else ""
        lines.append(Text(f"effects whose end is not known: {states} (oncebox effects list)", style=style))
    return lines


def _partitioned(report: StatusReport) -> list[RenderableType]:
    """A line for each ledger in partitions, which says whether those of the next days are there."""
    found: list[RenderableType] = []
    for each in report.partitioned:
        text = f"{each.consumer}: ledger in partitions for {many(each.days, 'day')}"
        text += f", {each.first_day} to {each.last_day}" if each.days else ""
        missing = f", none for {' and '.join(each.missing)}" if each.missing else ""
        found.append(plain(text) + plain(missing, "red"))
    return found


def _watermarked(report: StatusReport) -> list[RenderableType]:
    """A line for each consumer with watermarks."""
    return [
        plain(
            f"{each.consumer}: duplicates by watermark, {many(each.partitions, 'partition')} of "
            f"{many(each.topics, 'topic')}, the quietest moved {age(each.oldest_seconds)} ago (oncebox watermarks list)"
        )
        for each in report.watermarked
    ]
