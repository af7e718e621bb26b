"""One soak, from the first message to the checker's word."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from proof.soak.site import Site

STUCK_SECONDS = 120.0
"""Nothing has moved for so long though nothing bad happens any more: something is stuck."""
BACKLOG_MAX = 20_000
DUMP = Path("reports/soak-stuck.txt")

Plan = Sequence[tuple[float, str]]
"""What the database suffers, and at which share of the time."""


def drive(site: Site, seconds: float, messages: int, kills: int, plan: Plan = ()) -> list[str]:
    """Send, strike and tend until everything is sent and struck; then calm, until nothing is on its way.
    Returns a sentence when something is stuck; the workers have ended then."""
    began = time.monotonic()
    ahead = list(plan)
    told = 0.0
    sent = 0
    site.tend()
    while True:
        passed = time.monotonic() - began
        share = min(1.0, passed / (seconds * 0.85))
        if (wanted := min(int(messages * share) - sent, BACKLOG_MAX - site.backlog)) > 0:
            site.send(wanted)
            sent += wanted
        if ahead and ahead[0][0] <= share and site.place.is_ready(ahead[0][1]):
            site.suffer(ahead.pop(0)[1])
        elif site.counts["kills"] < int(kills * share):
            site.strike()
        site.tend()
        if passed - told > 15:
            told = passed
            print(
                f"{passed:5.0f} s: {sent:,} sent, {dict(site.counts)}, (effects, queue, broker) {site.progress()}",
                flush=True,
            )
        if sent >= messages and site.counts["kills"] >= kills and not ahead:
            break
        time.sleep(0.02)
    site.calm()
    found = settle(site)
    site.end()
    return found


def settle(site: Site, stuck_seconds: float = STUCK_SECONDS, dump: Path = DUMP) -> list[str]:
    """Wait until nothing is on its way; a sentence, and a dump of everything, if nothing moves any more."""
    last, since = site.progress(), time.monotonic()
    while last[1:] != (0, 0):
        time.sleep(0.2)
        site.tend()
        if (now := site.progress()) != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > stuck_seconds:
            dump.parent.mkdir(exist_ok=True)
            dump.write_text(site.state())
            return [f"stuck: {last} (effects, queue, broker) for {stuck_seconds:g} s; see {dump}"]
    return []
