"""What was counted, and what it means. Decisions only."""

from __future__ import annotations

from collections import Counter

import msgspec

from oncebox.demo.schedule import Schedule


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One run, counted."""

    deliveries: int
    kills: int
    messages: int
    """Different payments that were sent."""
    effects: int
    """Charges that are in the table."""
    lost: int
    """Payments without a charge."""
    doubled: int
    """Payments with more than one."""
    doubled_by_kills: int
    """Those of `doubled` that the producer sent only once."""
    unknown: int
    """Charges for payments that were never sent."""
    seconds: float

    @property
    def clean(self) -> bool:
        """Each payment has its one charge, and there is no other."""
        return not (self.lost or self.doubled or self.unknown)

    @property
    def rate(self) -> float:
        """Payments per second, kills and restarts included."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Both runs over one schedule; this is what `--json` prints."""

    seed: int
    database: str
    duplicates: int
    unprotected: Figures
    oncebox: Figures


def counted(
    schedule: Schedule, charges: Counter[str], *, deliveries: int, kills: int, seconds: float
) -> Figures:
    """Compare the charges with what was sent."""
    sent = {payment.id for payment in schedule.payments}
    doubled = {payment for payment, times in charges.items() if times > 1 and payment in sent}
    return Figures(
        deliveries=deliveries,
        kills=kills,
        messages=len(sent),
        effects=charges.total(),
        lost=len(sent - charges.keys()),
        doubled=len(doubled),
        doubled_by_kills=len(doubled - schedule.sent_again),
        unknown=sum(times for payment, times in charges.items() if payment not in sent),
        seconds=round(seconds, 3),
    )


def sentence(report: Report) -> str:
    """What the figures mean."""
    usual, ours = report.unprotected, report.oncebox
    if not ours.clean:
        return (
            f"oncebox broke its promise: {ours.lost:,} lost, {ours.doubled:,} doubled, {ours.unknown:,} unknown. "
            f"Please report this, with seed {report.seed}."
        )
    kept = f"oncebox charged each of the {ours.messages:,} exactly once"
    if usual.clean:
        return f"{kept}; nothing hit the usual handler this time: try more --kills or --duplicates."
    return f"The usual handler {_harm(usual)}; through the same kills and duplicates, {kept}."


def _harm(usual: Figures) -> str:
    harms = []
    if usual.doubled:
        causes = []
        if resent := usual.doubled - usual.doubled_by_kills:
            causes.append(f"{resent:,} because they came twice")
        if usual.doubled_by_kills:
            causes.append(f"{usual.doubled_by_kills:,} because a worker died between its commit and its ack")
        harms.append(f"charged {usual.doubled:,} payments more than once ({', '.join(causes)})")
    if usual.lost:
        harms.append(f"lost {usual.lost:,} that it had acked")
    return " and ".join(harms)
